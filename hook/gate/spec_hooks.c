/*
 * Implements spec_hooks.h: finds the lists of hooks in the text of config.json and builds the insertions. The order of
 * the hooks is explained there.
 */
#include "spec_hooks.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "json_scan.h"

/* In seconds. Kubelet waits two minutes for a CRI call: with less here, the user gets the hook's own error. */
#define HOOK_TIMEOUT "60"
#define HOOK_ENV "PATH=/usr/sbin:/usr/bin:/sbin:/bin"

enum kind { ABSENT, EMPTY_VALUE, CONTAINER };

/* One value in the text: null, or what is between the brackets of an object or array. */
struct place {
	enum kind kind;
	size_t begin, end;
	bool empty; /* nothing between the brackets */
	bool ours;  /* contains vgpu-hook already */
};

struct spec_hooks {
	size_t top; /* the offset behind the document's opening brace */
	bool empty; /* the document has no members */
	struct place hooks, prestart, create_runtime, poststop;
	const char *why;
};

static size_t offset(const struct json *json)
{
	return (size_t)(json->at - json->begin);
}

static bool is_vgpu_hook(struct json_text path)
{
	char copy[PATH_MAX];
	const char *slash;

	if (!json_scan_text_copy(path, copy, sizeof copy))
		return false;
	slash = strrchr(copy, '/');
	return slash && !strcmp(slash, "/vgpu-hook");
}

/* Whether the next object of a list is vgpu-hook, wherever that is installed. */
static bool read_hook(struct json *json)
{
	struct json_text key, path;
	bool first = true, ours = false;

	if (!json_scan_enter(json, '{'))
		return false;
	while (json_scan_next_member(json, &first, &key)) {
		if (!json_scan_text_equals(key, "path") || json_scan_peek(json) != '"')
			json_scan_skip(json);
		else if (json_scan_string(json, &path))
			ours = is_vgpu_hook(path);
	}
	return ours;
}

/* Begins the next value. True: it opens with `bracket`, which is passed. False: it is null, or an error is in *why. */
static bool open_place(struct json *json, char bracket, struct place *place, const char **why)
{
	char c = json_scan_peek(json);

	if (place->kind != ABSENT || (c != bracket && c != 'n')) {
		*why = place->kind != ABSENT ? "a duplicate key in its hooks"
					     : "hooks that are neither null nor of the right type";
		json_scan_skip(json);
		return false;
	}
	place->begin = offset(json) + (c == bracket);
	place->kind = c == bracket ? CONTAINER : EMPTY_VALUE;
	if (json_scan_enter(json, bracket))
		return true;
	place->end = offset(json);
	return false;
}

static void close_place(const struct json *json, struct place *place, bool empty)
{
	place->end = offset(json) - 1;
	place->empty = empty;
}

static void read_list(struct json *json, struct place *place, const char **why)
{
	bool first = true;

	if (!open_place(json, '[', place, why))
		return;
	while (json_scan_next_item(json, &first))
		place->ours |= read_hook(json);
	close_place(json, place, first);
}

static void read_hooks(struct json *json, struct spec_hooks *spec)
{
	struct json_text key;
	bool first = true;

	if (!open_place(json, '{', &spec->hooks, &spec->why))
		return;
	while (json_scan_next_member(json, &first, &key)) {
		if (json_scan_text_equals(key, "prestart"))
			read_list(json, &spec->prestart, &spec->why);
		else if (json_scan_text_equals(key, "createRuntime"))
			read_list(json, &spec->create_runtime, &spec->why);
		else if (json_scan_text_equals(key, "poststop"))
			read_list(json, &spec->poststop, &spec->why);
		else
			json_scan_skip(json);
	}
	close_place(json, &spec->hooks, first);
}

static void read_spec(const struct input *document, struct spec_hooks *spec)
{
	struct json json;
	struct json_text key;
	bool first = true;

	*spec = (struct spec_hooks){0};
	json_scan_open(&json, document->at, document->len);
	json_scan_enter(&json, '{');
	spec->top = offset(&json);
	while (json_scan_next_member(&json, &first, &key)) {
		if (json_scan_text_equals(key, "hooks"))
			read_hooks(&json, spec);
		else
			json_scan_skip(&json);
	}
	spec->empty = first;
}

/* All inserted text: two hooks, each with two paths and words. Every byte of a path may take six bytes as an escape. */
static char inserted[4 * 6 * PATH_MAX + 2 * SHIM_ANNOTATIONS_MAX * (SHIM_ANNOTATION_LEN + 32) + 1024];
static size_t used;

static void put(const char *text)
{
	size_t len = strlen(text), room = sizeof inserted - used - 1;

	if (len > room)
		len = room;
	memcpy(inserted + used, text, len);
	used += len;
}

static void put_string(const char *text)
{
	char one[8];

	put("\"");
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;
		snprintf(one, sizeof one, c < 0x20 || c == '"' || c == '\\' ? "\\u%04x" : "%c", c);
		put(one);
	}
	put("\"");
}

static void put_hook(const char *stage, const struct spec_hook *hook)
{
	put("{\"path\":");
	put_string(hook->path);
	put(",\"args\":[\"vgpu-hook\",");
	for (size_t i = 0; i < hook->count; i++) {
		put_string(hook->words[i]);
		put(",");
	}
	put_string(stage);
	put("],\"env\":[\"" HOOK_ENV "\"],\"timeout\":" HOOK_TIMEOUT "}");
}

static void put_member(const char *stage, const struct spec_hook *hook)
{
	put("\"");
	put(stage);
	put("\":[");
	put_hook(stage, hook);
	put("]");
}

static void add(struct spec_edits *edits, size_t at, size_t drop, size_t text)
{
	size_t i = edits->count++;

	for (; i > 0 && edits->edit[i - 1].offset > at; i--)
		edits->edit[i] = edits->edit[i - 1];
	edits->edit[i] = (struct spec_edit){.offset = at, .drop = drop, .text = inserted + text, .len = used - text};
}

/* Adds vgpu-hook to a list that exists or is null: as the last hook in prestart, as the first in poststop. */
static void add_to_list(struct spec_edits *edits, const struct place *list, const char *stage,
			const struct spec_hook *hook)
{
	bool last = !strcmp(stage, "prestart");
	size_t text = used;

	if (list->kind == EMPTY_VALUE)
		put("[");
	else if (last && !list->empty)
		put(",");
	put_hook(stage, hook);
	if (list->kind == EMPTY_VALUE)
		put("]");
	else if (!last && !list->empty)
		put(",");
	if (list->kind == EMPTY_VALUE)
		add(edits, list->begin, list->end - list->begin, text);
	else
		add(edits, last ? list->end : list->begin, 0, text);
}

/* Adds the missing lists as new members at the front of "hooks". Adds "hooks" too if it is missing. */
static void add_members(struct spec_edits *edits, const struct spec_hooks *spec, bool prestart, bool poststop,
			const struct spec_hook *hook)
{
	const struct place *hooks = &spec->hooks;
	size_t text = used;

	put(hooks->kind == ABSENT ? "\"hooks\":{" : hooks->kind == EMPTY_VALUE ? "{" : "");
	if (prestart)
		put_member("prestart", hook);
	put(prestart && poststop ? "," : "");
	if (poststop)
		put_member("poststop", hook);
	put(hooks->kind == ABSENT        ? (spec->empty ? "}" : "},")
	    : hooks->kind == EMPTY_VALUE ? "}"
	    : hooks->empty               ? ""
					 : ",");
	if (hooks->kind == ABSENT)
		add(edits, spec->top, 0, text);
	else
		add(edits, hooks->begin, hooks->kind == EMPTY_VALUE ? hooks->end - hooks->begin : 0, text);
}

struct spec_edits spec_hooks_add(const struct input *document, const struct spec_hook *hook)
{
	struct spec_edits edits = {0};
	struct spec_hooks spec;
	bool prestart, poststop;

	read_spec(document, &spec);
	edits.why = spec.why;
	if (spec.why)
		return edits;
	used = 0;
	prestart = !spec.prestart.ours && !spec.create_runtime.ours;
	poststop = !spec.poststop.ours;
	if (prestart && spec.prestart.kind != ABSENT)
		add_to_list(&edits, &spec.prestart, "prestart", hook);
	if (poststop && spec.poststop.kind != ABSENT)
		add_to_list(&edits, &spec.poststop, "poststop", hook);
	prestart &= spec.prestart.kind == ABSENT;
	poststop &= spec.poststop.kind == ABSENT;
	if (prestart || poststop)
		add_members(&edits, &spec, prestart, poststop, hook);
	return edits;
}
