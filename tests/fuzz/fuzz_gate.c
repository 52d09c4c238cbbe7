/*
 * Fuzz target (libFuzzer) for the gate: any bytes as the state JSON and as config.json. Whatever the scanner accepts
 * has to end where the document ends, and the shim's insertions have to lie inside the document, in order, and to leave
 * a document that is accepted with vgpu-hook in it.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "json_scan.h"
#include "marker.h"
#include "spec_hooks.h"

#define HOOK "/usr/bin/vgpu-hook"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char edited[1 << 16];

/* The document with the edits; its length, or 0 where it is too long for this target. */
static size_t apply(const struct input *document, const struct spec_edits *edits)
{
	size_t at = 0, length = 0;

	for (size_t i = 0; i < edits->count; i++) {
		const struct spec_edit *edit = &edits->edit[i];
		if (edit->offset < at || edit->offset + edit->drop > document->len)
			abort();
		if (length + edit->offset - at + edit->len > sizeof(edited))
			return 0;
		memcpy(edited + length, document->at + at, edit->offset - at);
		length += edit->offset - at;
		memcpy(edited + length, edit->text, edit->len);
		length += edit->len;
		at = edit->offset + edit->drop;
	}
	if (length + document->len - at > sizeof(edited))
		return 0;
	memcpy(edited + length, document->at + at, document->len - at);
	return length + document->len - at;
}

static void check_hooks(const struct input *document)
{
	const struct spec_hook hook = {.path = HOOK, .words = {"--config", "/etc/vgpu/config.json"}, .count = 2};
	struct spec_edits edits = spec_hooks_add(document, &hook);
	struct marks marks;

	if (edits.why || !edits.count)
		return;
	struct input again = {.at = edited, .len = apply(document, &edits)};
	if (!again.len)
		return;
	if (!marker_of_config(&again, &marks))
		abort(); /* the runtime gets this document */
	edits = spec_hooks_add(&again, &hook);
	if (edits.count || edits.why)
		abort(); /* the hook is there now, and is not added twice */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *copy = malloc(size ? size : 1); /* of exactly this size: a byte beyond it is a finding */
	struct input input = {.at = copy, .len = size};
	struct marks marks;

	if (!copy)
		abort();
	memcpy(copy, data, size);
	if (marker_of_state(&input, &marks)) {
		if (!memchr(marks.bundle, 0, sizeof(marks.bundle)) || marks.bundle[0] != '/')
			abort();
	} else if (!marks.why[0])
		abort();
	if (marker_of_config(&input, &marks) && marks.vgpu) /* the shim leaves all others as they are */
		check_hooks(&input);
	(void)marker_is_anywhere(&input);
	free(copy);
	return 0;
}
