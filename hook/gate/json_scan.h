/*
 * A pull scanner over one JSON document in memory. It checks the whole grammar of what it passes, copies nothing and
 * allocates nothing. The depth is bounded, and nesting costs no C stack.
 *
 * Belongs here: the grammar. What the document means is decided by the callers. In one point the scanner accepts more
 * than RFC 8259: like Go, it does not check bytes from 0x80 up inside strings.
 */
#ifndef VGPU_GATE_JSON_SCAN_H
#define VGPU_GATE_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>

#define JSON_DEPTH_MAX 512

struct json {
	const char *begin, *at, *end;
	const char *error; /* static text; NULL: no error so far. With an error, `at` is where it was found */
};

/* The text between the quotes of a string, with its escapes. */
struct json_text {
	const char *at;
	size_t len;
};

void json_scan_open(struct json *json, const char *bytes, size_t len);

/* Sets the error if there is none yet. Always returns false. */
bool json_scan_fail(struct json *json, const char *error);

/* The first byte of the next token. 0: the end of the document, or a NUL byte in it. */
char json_scan_peek(struct json *json);

/* Passes `bracket`, which is '{' or '['. A value of any other kind is passed as a whole, and the result is false. */
bool json_scan_enter(struct json *json, char bracket);

/*
 * Steps to the next member or item of the object or array entered last. The caller must pass its value before the next
 * step. `first` is true before the first step. False: at the closing bracket, which is passed, and on an error.
 */
bool json_scan_next_member(struct json *json, bool *first, struct json_text *key);
bool json_scan_next_item(struct json *json, bool *first);

bool json_scan_skip(struct json *json);
bool json_scan_string(struct json *json, struct json_text *text);

/* Fails if anything but white space is left. */
bool json_scan_close(struct json *json);

bool json_scan_text_starts(struct json_text text, const char *ascii);
bool json_scan_text_equals(struct json_text text, const char *ascii);

/* Copies the string as UTF-8 with a closing NUL. False: it does not fit, or contains a NUL itself. */
bool json_scan_text_copy(struct json_text text, char *to, size_t size);

#endif
