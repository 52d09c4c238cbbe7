/*
 * Implements marker.h: reads the annotations, the environment and the bundle's path from the state and from
 * config.json. json_scan.h does the parsing.
 */
#include "marker.h"

#include <stdio.h>
#include <string.h>

#include "json_scan.h"

#define ANNOTATION "vgpu.io/"
#define ENVIRONMENT "VGPU_GRANT_"

static bool is_container_type(struct json_text key)
{
	return json_scan_text_equals(key, "io.kubernetes.cri.container-type") ||
	       json_scan_text_equals(key, "io.kubernetes.cri-o.ContainerType");
}

/* The names by which vgpu.hook.request.authorization may give a card. A pod's sandbox may have wishes besides. */
static bool is_amount(struct json_text key)
{
	return json_scan_text_starts(key, ANNOTATION "grant-") || json_scan_text_starts(key, ANNOTATION "request-") ||
	       json_scan_text_equals(key, ANNOTATION "cores") || json_scan_text_equals(key, ANNOTATION "memory") ||
	       json_scan_text_equals(key, ANNOTATION "gpus");
}

static void read_annotations(struct json *json, struct marks *marks)
{
	struct json_text key, value;
	bool first = true;

	if (!json_scan_enter(json, '{'))
		return;
	while (json_scan_next_member(json, &first, &key)) {
		marks->vgpu |= json_scan_text_starts(key, ANNOTATION);
		marks->amount |= is_amount(key);
		if (!is_container_type(key) || json_scan_peek(json) != '"')
			json_scan_skip(json);
		else if (json_scan_string(json, &value))
			marks->sandbox |= json_scan_text_equals(value, "sandbox");
	}
}

static void read_env(struct json *json, struct marks *marks)
{
	struct json_text entry;
	bool first = true;

	if (!json_scan_enter(json, '['))
		return;
	while (json_scan_next_item(json, &first)) {
		if (json_scan_peek(json) != '"')
			json_scan_skip(json);
		else if (json_scan_string(json, &entry) && json_scan_text_starts(entry, ENVIRONMENT))
			marks->vgpu = marks->amount = true;
	}
}

static void read_process(struct json *json, struct marks *marks)
{
	struct json_text key;
	bool first = true;

	if (!json_scan_enter(json, '{'))
		return;
	while (json_scan_next_member(json, &first, &key)) {
		if (json_scan_text_equals(key, "env"))
			read_env(json, marks);
		else
			json_scan_skip(json);
	}
}

static void read_bundle(struct json *json, struct marks *marks)
{
	struct json_text value;

	if (json_scan_peek(json) != '"')
		json_scan_skip(json);
	else if (json_scan_string(json, &value) && !json_scan_text_copy(value, marks->bundle, sizeof marks->bundle))
		marks->bundle[0] = 0;
}

static void state_member(struct json *json, struct json_text key, struct marks *marks)
{
	if (json_scan_text_equals(key, "annotations"))
		read_annotations(json, marks);
	else if (json_scan_text_equals(key, "bundle"))
		read_bundle(json, marks);
	else
		json_scan_skip(json);
}

static void config_member(struct json *json, struct json_text key, struct marks *marks)
{
	if (json_scan_text_equals(key, "annotations"))
		read_annotations(json, marks);
	else if (json_scan_text_equals(key, "process"))
		read_process(json, marks);
	else
		json_scan_skip(json);
}

static bool read_document(const struct input *input, struct marks *marks,
			  void (*member)(struct json *, struct json_text, struct marks *))
{
	struct json json;
	struct json_text key;
	bool first = true;

	*marks = (struct marks){0};
	json_scan_open(&json, input->at, input->len);
	if (json_scan_peek(&json) != '{')
		json_scan_fail(&json, input->len ? "no object" : "an empty document");
	else
		json_scan_enter(&json, '{');
	while (json_scan_next_member(&json, &first, &key))
		member(&json, key, marks);
	if (!input->oversized && json_scan_close(&json))
		return true;
	if (input->oversized)
		snprintf(marks->why, sizeof marks->why, "more than %zu bytes", input->len);
	else
		snprintf(marks->why, sizeof marks->why, "%s at byte %zu", json.error, (size_t)(json.at - json.begin));
	return false;
}

bool marker_is_sandbox(const struct marks *one, const struct marks *other)
{
	bool sandbox = (one && one->sandbox) || (other && other->sandbox);
	bool amount = (one && one->amount) || (other && other->amount);

	return sandbox && !amount;
}

bool marker_of_state(const struct input *input, struct marks *marks)
{
	if (!read_document(input, marks, state_member))
		return false;
	if (marks->bundle[0] == '/')
		return true;
	snprintf(marks->why, sizeof marks->why, "no absolute path under \"bundle\"");
	return false;
}

bool marker_of_config(const struct input *input, struct marks *marks)
{
	return read_document(input, marks, config_member);
}

static bool contains(const struct input *input, const char *text)
{
	return memmem(input->at, input->len, text, strlen(text)) != NULL;
}

bool marker_is_anywhere(const struct input *input)
{
	return contains(input, ANNOTATION) || contains(input, "vgpu.io\\/") || contains(input, ENVIRONMENT);
}
