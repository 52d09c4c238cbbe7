/*
 * A pull scanner over one JSON document in memory. It checks the whole grammar of what it passes, copies nothing and
 * allocates nothing; depth is bounded and costs no C stack. What the document means is none of its business.
 *
 * Laxer than RFC 8259 in one point: bytes from 0x80 up are passed on unchecked inside strings, as Go does.
 */
#ifndef VGPU_GATE_JSON_SCAN_H
#define VGPU_GATE_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>

#define JSON_DEPTH_MAX 512

struct json {
    const char *begin, *at, *end;
    const char *error; /* static text, NULL as long as all is well; then `at` is where */
};

/* A string as it stands between its quotes, escapes unresolved. */
struct json_text {
    const char *at;
    size_t len;
};

void json_open(struct json *json, const char *bytes, size_t len);

/* Sets the error if there is none yet; always false. */
bool json_fail(struct json *json, const char *error);

/* The first byte of the next token, 0 at the end of the document (and for a NUL byte in it). */
char json_peek(struct json *json);

/* Passes `bracket`, '{' or '['. A value of any other kind is passed as a whole, and the answer is false. */
bool json_enter(struct json *json, char bracket);

/*
 * Steps to the next member or item of the container entered last; its value has to be consumed before the next step.
 * `first` is true before the first step. False at the closing bracket, which is passed, and on an error.
 */
bool json_next_member(struct json *json, bool *first, struct json_text *key);
bool json_next_item(struct json *json, bool *first);

bool json_skip(struct json *json);
bool json_string(struct json *json, struct json_text *text);

/* Nothing but white space may be left. */
bool json_close(struct json *json);

bool json_text_starts(struct json_text text, const char *ascii);
bool json_text_equals(struct json_text text, const char *ascii);

/* The string as UTF-8 with a closing NUL; false where it does not fit or holds a NUL itself. */
bool json_text_copy(struct json_text text, char *to, size_t size);

#endif
