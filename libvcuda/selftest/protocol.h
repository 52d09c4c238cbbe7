/*
 * The lines between the self-test's program and its caller: commands of words from stdin, one JSON object for each on
 * stdout.
 *
 * Belongs here: splitting a line, checking it against what its command takes, and writing the answer. Not which
 * commands there are (main.c).
 *
 * What a command takes is a text of words. `KIND` and `BYTES#` stand for a word each; `#` means that it has to be a
 * number. `kernel=#` stands for a word `kernel=...` that has to be there, `[ahead=4]` for one that may be left out, and
 * what it is then. It has to be a number if that is one.
 */
#ifndef SELFTEST_PROTOCOL_H
#define SELFTEST_PROTOCOL_H

#include <stdbool.h>
#include <stdint.h>

/* Reads the next line: its first word, NULL at the end of the input. */
const char *protocol_read(void);
/* The line's word of that number, from 0; "" if it has fewer. */
const char *protocol_word(unsigned number);
/* Whether the line's other words are what `takes` says. If not, the answer says what was expected. */
bool protocol_takes(const char *takes);
/* The word of that name in `takes`, as a text and as a number. */
const char *protocol_text(const char *name);
uint64_t protocol_number(const char *name);

/* An answer is a list of members between protocol_begin and protocol_end. */
void protocol_begin(void);
void protocol_add(const char *name, uint64_t value);
void protocol_add_text(const char *name, const char *text);
void protocol_add_bool(const char *name, bool value);
/* The member's value, or a part of a list, in JSON: the caller writes it. */
void protocol_add_json(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
void protocol_more(const char *format, ...) __attribute__((format(printf, 1, 2)));
void protocol_end(void);

/* Whole answers: of the driver's result, and of a command that makes no sense. */
void protocol_code(int code);
void protocol_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
