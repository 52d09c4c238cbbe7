#include "cuda_ptx.h"

#include <ctype.h>
#include <string.h>

static const char *skip_comment(const char *at)
{
	const char *end = at[1] == '/' ? strchr(at, '\n') : strstr(at + 2, "*/");

	if (!end)
		return at + strlen(at);
	return at[1] == '/' ? end : end + 2;
}

static bool is_word(char c)
{
	return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '.' || c == '%';
}

/* The next word (a directive with its dot, a name, a number) and where it ends; NULL at the end of the text. */
static const char *next_word(const char *at, const char **end)
{
	while (*at && !is_word(*at))
		at = at[0] == '/' && (at[1] == '/' || at[1] == '*') ? skip_comment(at) : at + 1;
	if (!*at)
		return NULL;
	for (*end = at; is_word(**end);)
		*end += 1;
	return at;
}

static bool equals(const char *word, const char *end, const char *text)
{
	return (size_t)(end - word) == strlen(text) && strncmp(word, text, (size_t)(end - word)) == 0;
}

bool sim_ptx_is(const char *text)
{
	const char *end;
	const char *word = next_word(text, &end);

	return word && equals(word, end, ".version") && strstr(end, ".target");
}

bool sim_ptx_has_entry(const char *text, const char *name)
{
	bool after_entry = false;
	const char *end = text;

	for (const char *word = next_word(text, &end); word; word = next_word(end, &end)) {
		if (after_entry && equals(word, end, name))
			return true;
		after_entry = equals(word, end, ".entry");
	}
	return false;
}
