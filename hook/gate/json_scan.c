/* Implements json_scan.h. No function reads beyond json->end. The first error stays, and all later calls fail. */
#include "json_scan.h"

#include <string.h>

void json_scan_open(struct json *json, const char *bytes, size_t len)
{
	*json = (struct json){.begin = bytes, .at = bytes, .end = bytes + len};
}

bool json_scan_fail(struct json *json, const char *error)
{
	if (!json->error)
		json->error = error;
	return false;
}

static bool unexpected(struct json *json)
{
	return json_scan_fail(json, json->at == json->end ? "an unexpected end" : "an unexpected byte");
}

char json_scan_peek(struct json *json)
{
	while (json->at < json->end &&
	       (*json->at == ' ' || *json->at == '\n' || *json->at == '\t' || *json->at == '\r'))
		json->at++;
	return json->at < json->end ? *json->at : 0;
}

static bool expect(struct json *json, char c)
{
	if (json->error || json_scan_peek(json) != c)
		return unexpected(json);
	json->at++;
	return true;
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Passes an escape. The caller has passed its backslash. */
static bool escape(struct json *json)
{
	if (json->at == json->end || !*json->at || !strchr("\"\\/bfnrtu", *json->at))
		return unexpected(json);
	if (*json->at++ != 'u')
		return true;
	for (int i = 0; i < 4; i++, json->at++)
		if (json->at == json->end || hex_digit(*json->at) < 0)
			return unexpected(json);
	return true;
}

bool json_scan_string(struct json *json, struct json_text *text)
{
	if (!expect(json, '"'))
		return false;
	text->at = json->at;
	while (json->at < json->end && *json->at != '"') {
		if ((unsigned char)*json->at < 0x20)
			return unexpected(json);
		if (*json->at++ == '\\' && !escape(json))
			return false;
	}
	text->len = (size_t)(json->at - text->at);
	if (json->at == json->end)
		return unexpected(json);
	json->at++;
	return true;
}

static bool digits(struct json *json)
{
	const char *begin = json->at;

	while (json->at < json->end && *json->at >= '0' && *json->at <= '9')
		json->at++;
	return json->at > begin ? true : unexpected(json);
}

static bool at_any(const struct json *json, const char *set)
{
	return json->at < json->end && *json->at && strchr(set, *json->at);
}

static bool number(struct json *json)
{
	if (at_any(json, "-"))
		json->at++;
	if (at_any(json, "0"))
		json->at++;
	else if (!digits(json))
		return false;
	if (at_any(json, ".")) {
		json->at++;
		if (!digits(json))
			return false;
	}
	if (!at_any(json, "eE"))
		return true;
	json->at++;
	if (at_any(json, "+-"))
		json->at++;
	return digits(json);
}

static bool word(struct json *json, const char *literal)
{
	for (; *literal; literal++, json->at++)
		if (json->at == json->end || *json->at != *literal)
			return unexpected(json);
	return true;
}

static bool scalar(struct json *json, char first)
{
	struct json_text text;

	switch (first) {
	case '"': return json_scan_string(json, &text);
	case 't': return word(json, "true");
	case 'f': return word(json, "false");
	case 'n': return word(json, "null");
	default: return number(json);
	}
}

/* True: another member or item follows. Passes the comma before it, or the closing bracket. */
static bool next_in(struct json *json, char closing, bool *first)
{
	char c;

	if (json->error)
		return false;
	c = json_scan_peek(json);
	if (c == closing) {
		json->at++;
		return false;
	}
	if (*first) {
		*first = false;
		return true;
	}
	return expect(json, ',');
}

bool json_scan_next_member(struct json *json, bool *first, struct json_text *key)
{
	return next_in(json, '}', first) && json_scan_string(json, key) && expect(json, ':');
}

bool json_scan_next_item(struct json *json, bool *first)
{
	return next_in(json, ']', first);
}

static bool next_of(struct json *json, char bracket, bool *first)
{
	struct json_text key;

	return bracket == '{' ? json_scan_next_member(json, first, &key) : json_scan_next_item(json, first);
}

bool json_scan_skip(struct json *json)
{
	char open[JSON_DEPTH_MAX];
	size_t depth = 0;
	bool first;

	do {
		char c = json->error ? 0 : json_scan_peek(json);
		first = c == '{' || c == '[';
		if (json->error)
			return false;
		if (first && depth == sizeof open)
			return json_scan_fail(json, "nesting deeper than 512");
		if (first) {
			open[depth++] = c;
			json->at++;
		} else if (!scalar(json, c)) {
			return false;
		}
		for (; depth && !next_of(json, open[depth - 1], &first); depth--, first = false)
			if (json->error)
				return false;
	} while (depth);
	return true;
}

bool json_scan_enter(struct json *json, char bracket)
{
	if (!json->error && json_scan_peek(json) == bracket) {
		json->at++;
		return true;
	}
	json_scan_skip(json);
	return false;
}

bool json_scan_close(struct json *json)
{
	json_scan_peek(json);
	return !json->error && json->at == json->end ? true : json_scan_fail(json, "something after the document");
}

static unsigned hex4(const char *at)
{
	unsigned value = 0;

	for (int i = 0; i < 4; i++)
		value = value << 4 | (unsigned)hex_digit(at[i]);
	return value;
}

/*
 * Takes one byte or one escape from the front. A \uXXXX escape is one UTF-16 unit, returned with bit 16 set, so that
 * it is not mistaken for a raw byte. json_scan_string() has checked the escapes before.
 */
#define UNIT 0x10000u

static unsigned take(struct json_text *text)
{
	static const char plain[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
	const char *at = text->at;
	size_t taken = *at != '\\' ? 1 : at[1] == 'u' ? 6 : 2;

	text->at += taken;
	text->len -= taken;
	if (taken == 1)
		return (unsigned char)*at;
	return taken == 6 ? UNIT | hex4(at + 2) : (unsigned char)meant[strchr(plain, at[1]) - plain];
}

static bool starts(struct json_text *text, const char *ascii)
{
	for (; *ascii; ascii++)
		if (!text->len || (take(text) & ~UNIT) != (unsigned char)*ascii)
			return false;
	return true;
}

bool json_scan_text_starts(struct json_text text, const char *ascii)
{
	return starts(&text, ascii);
}

bool json_scan_text_equals(struct json_text text, const char *ascii)
{
	return starts(&text, ascii) && !text.len;
}

/* The code point of a \uXXXX escape. Takes the second surrogate too; a single surrogate becomes U+FFFD, as in Go. */
static unsigned code_point(struct json_text *text, unsigned unit)
{
	struct json_text ahead = *text;
	unsigned low;

	if (unit < 0xD800 || unit > 0xDFFF)
		return unit;
	low = ahead.len ? take(&ahead) : 0;
	if (unit > 0xDBFF || (low & ~0x3FFu) != (UNIT | 0xDC00))
		return 0xFFFD;
	*text = ahead;
	return 0x10000 + ((unit & 0x3FF) << 10) + (low & 0x3FF);
}

static size_t encode(unsigned c, char *to)
{
	size_t more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
	static const unsigned char lead[] = {0, 0xC0, 0xE0, 0xF0};

	to[0] = (char)(lead[more] | c >> 6 * more);
	for (size_t i = 1; i <= more; i++)
		to[i] = (char)(0x80 | (c >> 6 * (more - i) & 0x3F));
	return more + 1;
}

bool json_scan_text_copy(struct json_text text, char *to, size_t size)
{
	size_t used = 0;

	while (text.len) {
		unsigned c = take(&text);
		if (!(c & ~UNIT) || used + 5 > size)
			return false;
		if (c & UNIT)
			used += encode(code_point(&text, c & ~UNIT), to + used);
		else
			to[used++] = (char)c;
	}
	if (used == size)
		return false;
	to[used] = 0;
	return true;
}
