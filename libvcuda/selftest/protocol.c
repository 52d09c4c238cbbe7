#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "protocol.h"

#define LINE_MAX_BYTES 1024
#define VALUES_MAX 24

struct value {
	char name[16];
	const char *text;
	uint64_t number;
};

static char line[LINE_MAX_BYTES], defaults[LINE_MAX_BYTES];
static char *words[VALUES_MAX];
static unsigned word_count;
static struct value values[VALUES_MAX];
static unsigned value_count;
static bool has_member;

/* Not strtoull: on a new distribution it would need a new glibc. */
static bool parse(const char *text, uint64_t *number)
{
	*number = 0;
	if (!*text)
		return false;
	for (; *text; text++) {
		if (*text < '0' || *text > '9' || *number > (UINT64_MAX - 9) / 10)
			return false;
		*number = *number * 10 + (uint64_t)(*text - '0');
	}
	return true;
}

const char *protocol_read(void)
{
	char *rest;

	for (;;) {
		if (!fgets(line, sizeof line, stdin))
			return NULL;
		word_count = 0;
		for (char *word = strtok_r(line, " \t\r\n", &rest); word && word_count < VALUES_MAX;
		     word = strtok_r(NULL, " \t\r\n", &rest))
			words[word_count++] = word;
		if (word_count)
			return words[0];
	}
}

const char *protocol_word(unsigned number)
{
	return number < word_count ? words[number] : "";
}

/* Takes the first word that is left: one without `=`, or the one that begins with `name`=. */
static const char *take_word(const char *name, size_t length)
{
	for (unsigned i = 1; i < word_count; i++) {
		char *word = words[i];
		if (!word ||
		    (length ? strncmp(word, name, length) != 0 || word[length] != '=' : strchr(word, '=') != NULL))
			continue;
		words[i] = NULL;
		return length ? word + length + 1 : word;
	}
	return NULL;
}

/* One word of `takes`: `#` stands at its end. */
static bool take_expected(char *expected)
{
	bool optional = *expected == '[';
	char *name = expected + optional, *equals = strchr(name, '='), *default_text = NULL;
	struct value *value = &values[value_count];
	size_t length = strcspn(name, "=#]");
	bool is_number = strchr(name, '#') != NULL;

	if (optional && equals) {
		default_text = equals + 1;
		default_text[strcspn(default_text, "]")] = 0;
		is_number = parse(default_text, &value->number);
	}
	snprintf(value->name, sizeof value->name, "%.*s", (int)length, name);
	value->text = take_word(name, equals ? length : 0);
	if (!value->text)
		value->text = default_text;
	if (!value->text || (!parse(value->text, &value->number) && is_number))
		return false;
	value_count++;
	return true;
}

static bool all_taken(void)
{
	for (unsigned i = 1; i < word_count; i++)
		if (words[i])
			return false;
	return true;
}

bool protocol_takes(const char *takes)
{
	char *rest, *word;
	bool ok = true;

	snprintf(defaults, sizeof defaults, "%s", takes);
	value_count = 0;
	for (word = strtok_r(defaults, " ", &rest); ok && word; word = strtok_r(NULL, " ", &rest))
		ok = value_count < VALUES_MAX && take_expected(word);
	if (ok && all_taken())
		return true;
	protocol_error("%s: expected %s", words[0], *takes ? takes : "nothing more");
	return false;
}

static const struct value *value_of(const char *name)
{
	static const struct value none = {.text = ""};

	for (unsigned i = 0; i < value_count; i++)
		if (strcmp(values[i].name, name) == 0)
			return &values[i];
	return &none;
}

const char *protocol_text(const char *name)
{
	return value_of(name)->text;
}

uint64_t protocol_number(const char *name)
{
	return value_of(name)->number;
}

/* ---- answers ---- */

void protocol_begin(void)
{
	putchar('{');
	has_member = false;
}

static void open_member(const char *name)
{
	printf("%s\"%s\": ", has_member ? ", " : "", name);
	has_member = true;
}

static void put_text(const char *text)
{
	putchar('"');
	for (; *text; text++)
		if (*text == '"' || *text == '\\')
			printf("\\%c", *text);
		else if ((unsigned char)*text < ' ')
			printf("\\u%04x", (unsigned)*text);
		else
			putchar(*text);
	putchar('"');
}

void protocol_add(const char *name, uint64_t value)
{
	open_member(name);
	printf("%lu", (unsigned long)value);
}

void protocol_add_text(const char *name, const char *text)
{
	open_member(name);
	put_text(text);
}

void protocol_add_bool(const char *name, bool value)
{
	open_member(name);
	printf(value ? "true" : "false");
}

void protocol_add_json(const char *name, const char *format, ...)
{
	va_list arguments;

	open_member(name);
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
}

void protocol_more(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
}

void protocol_end(void)
{
	printf("}\n");
	fflush(stdout);
}

void protocol_code(int code)
{
	protocol_begin();
	protocol_add("code", (uint64_t)code);
	protocol_end();
}

void protocol_error(const char *format, ...)
{
	char text[512];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	protocol_begin();
	protocol_add_text("error", text);
	protocol_end();
}
