/*
 * Reads PTX: the names and parameters of its kernels, and the variables that the host can look up. Compiled code
 * is read in cuda/code/cubin.c; choosing among several images is in cuda/code/image.c.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/code/image.h"

struct word {
	const char *start, *end;
};

static const char *skip_comment(const char *at)
{
	const char *end = at[1] == '/' ? strchr(at, '\n') : strstr(at + 2, "*/");

	if (!end)
		return at + strlen(at);
	return at[1] == '/' ? end : end + 2;
}

static bool is_letter(char c)
{
	return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '.' || c == '%';
}

/* The next word: a directive with its dot, a name, a number, or a single character of ( ) { } [ ] , ; = */
static bool next_word(const char *at, struct word *word)
{
	while (*at && !is_letter(*at) && !strchr("(){}[],;=", *at))
		at = at[0] == '/' && (at[1] == '/' || at[1] == '*') ? skip_comment(at) : at + 1;
	word->start = word->end = at;
	if (!*at)
		return false;
	if (!is_letter(*at)) {
		word->end++;
		return true;
	}
	while (is_letter(*word->end))
		word->end++;
	return true;
}

static bool equals(const struct word *word, const char *text)
{
	size_t length = (size_t)(word->end - word->start);

	return length == strlen(text) && strncmp(word->start, text, length) == 0;
}

static bool is_ptx(const char *text)
{
	struct word word;

	return next_word(text, &word) && equals(&word, ".version") && strstr(word.end, ".target");
}

/* Size in bytes of the type with that name; 0: no such type. */
static uint32_t type_bytes(const struct word *word)
{
	static const struct {
		const char *name;
		uint32_t bytes;
	} types[] = {
		{".u8", 1},  {".s8", 1},  {".b8", 1},  {".u16", 2}, {".s16", 2},   {".b16", 2},
		{".f16", 2}, {".u32", 4}, {".s32", 4}, {".b32", 4}, {".f32", 4},   {".f16x2", 4},
		{".u64", 8}, {".s64", 8}, {".b64", 8}, {".f64", 8}, {".b128", 16},
	};

	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		if (equals(word, types[i].name))
			return types[i].bytes;
	return 0;
}

/* One declaration up to , ; ) or =: its type, alignment, name and number of elements. */
struct declaration {
	uint32_t bytes, alignment;
	uint64_t count;
	bool is_reference; /* a texture or surface, which has no memory */
	struct word name;
};

static const char *read_declaration(const char *at, struct declaration *out)
{
	bool after_align = false, in_brackets = false;
	struct word word;

	*out = (struct declaration){.count = 1};
	while (next_word(at, &word)) {
		at = word.end;
		if (strchr(",;)=", *word.start))
			return word.start;
		uint32_t bytes = type_bytes(&word);
		if (bytes)
			out->bytes = bytes;
		else if (equals(&word, ".texref") || equals(&word, ".surfref"))
			out->is_reference = true;
		else if (after_align)
			out->alignment = (uint32_t)strtoul(word.start, NULL, 10);
		else if (in_brackets && isdigit((unsigned char)*word.start))
			out->count = strtoul(word.start, NULL, 0);
		else if (is_letter(*word.start) && *word.start != '.' && !isdigit((unsigned char)*word.start))
			out->name = word;
		after_align = equals(&word, ".align");
		in_brackets = *word.start == '[' || (in_brackets && *word.start != ']');
	}
	return word.start;
}

static const char *read_parameters(const char *at, struct sim_kernel *kernel)
{
	struct declaration declaration;
	struct word word;
	uint32_t offset = 0;

	if (!next_word(at, &word) || *word.start != '(')
		return at;
	for (at = word.end; next_word(at, &word) && *word.start != ')';) {
		at = read_declaration(at, &declaration);
		uint32_t size = declaration.bytes * (uint32_t)declaration.count;
		uint32_t alignment = declaration.alignment ? declaration.alignment : declaration.bytes;
		if (alignment && size && kernel->parameter_count < SIM_MAX_PARAMETERS) {
			offset = (offset + alignment - 1) / alignment * alignment;
			kernel->parameters[kernel->parameter_count].offset = offset;
			kernel->parameters[kernel->parameter_count++].size = size;
			offset += size;
		}
		if (*at == ',')
			at++;
		else if (*at != ')')
			return at;
	}
	return at;
}

static bool read_variable(const char **at, struct sim_image *image)
{
	struct declaration declaration;

	*at = read_declaration(*at, &declaration);
	if (!declaration.name.start || declaration.is_reference)
		return true;
	size_t length = (size_t)(declaration.name.end - declaration.name.start);
	return sim_image_add_variable(image, declaration.name.start, length, declaration.bytes * declaration.count);
}

static bool read_entry(const char **at, struct sim_image *image)
{
	struct word name;

	if (!next_word(*at, &name))
		return true;
	struct sim_kernel *kernel = sim_image_add_kernel(image, name.start, (size_t)(name.end - name.start));
	if (kernel)
		*at = read_parameters(name.end, kernel);
	return kernel != NULL;
}

/* Only variables outside of functions count. */
enum sim_image_status sim_ptx_read(const char *text, struct sim_image *image)
{
	unsigned depth = 0;
	struct word word;
	bool ok = true;

	if (!is_ptx(text))
		return SIM_IMAGE_INVALID;
	for (const char *at = text; ok && next_word(at, &word);) {
		at = word.end;
		if (*word.start == '{')
			depth++;
		else if (*word.start == '}')
			depth -= depth > 0;
		else if (!depth && equals(&word, ".entry"))
			ok = read_entry(&at, image);
		else if (!depth && (equals(&word, ".global") || equals(&word, ".const")))
			ok = read_variable(&at, image);
	}
	return ok ? SIM_IMAGE_OK : SIM_IMAGE_NO_MEMORY;
}
