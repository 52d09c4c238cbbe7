/*
 * Implements spec_annotations.h: finds the object of annotations in the text, and leaves out the keys that are there.
 */
#include "spec_annotations.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "json_scan.h"

enum object { MISSING, IS_NULL, PRESENT };

struct spec_annotations {
    enum object kind;
    size_t top, begin, end; /* behind the document's brace; the null, or behind the object's brace */
    bool empty;    /* the object of annotations */
    bool document; /* the document has members */
    bool known[SHIM_ANNOTATIONS_MAX];
};

static char added[SHIM_ANNOTATIONS_MAX * (SHIM_ANNOTATION_LEN + 8) + 32];

/* Whether `key` is that of KEY=VALUE. */
static bool is_key_of(struct json_text key, const char *annotation)
{
    char copy[SHIM_ANNOTATION_LEN + 1];
    size_t len = strcspn(annotation, "=");

    return json_scan_text_copy(key, copy, sizeof copy) && strlen(copy) == len && !memcmp(copy, annotation, len);
}

static void read_known(struct json *json, struct spec_annotations *found, const char *const *annotations,
                             size_t count)
{
    struct json_text key;
    bool first = true, null = json_scan_peek(json) == 'n';

    found->begin = (size_t)(json->at - json->begin) + !null;
    found->kind = null ? IS_NULL : PRESENT;
    found->empty = true;
    if (json_scan_enter(json, '{'))
        while (json_scan_next_member(json, &first, &key)) {
            found->empty = false;
            for (size_t i = 0; i < count; i++)
                found->known[i] |= is_key_of(key, annotations[i]);
            json_scan_skip(json);
        }
    found->end = (size_t)(json->at - json->begin);
}

static struct spec_annotations find_annotations(const struct input *document, const char *const *annotations,
                                                size_t count)
{
    struct spec_annotations found = {.kind = MISSING};
    struct json json;
    struct json_text key;
    bool first = true;

    json_scan_open(&json, document->at, document->len);
    json_scan_enter(&json, '{');
    found.top = (size_t)(json.at - json.begin);
    while (json_scan_next_member(&json, &first, &key)) {
        found.document = true;
        if (json_scan_text_equals(key, "annotations"))
            read_known(&json, &found, annotations, count);
        else
            json_scan_skip(&json);
    }
    return found;
}

/* The members that are not known yet, with commas between them. Returns how many. */
static size_t write_members(char *to, size_t size, const struct spec_annotations *found, const char *const *annotations,
                            size_t count)
{
    size_t written = 0;

    *to = 0;
    for (size_t i = 0; i < count; i++) {
        size_t used = strlen(to);
        int len = (int)strcspn(annotations[i], "=");

        if (found->known[i])
            continue;
        snprintf(to + used, size - used, "%s\"%.*s\":\"%s\"", written++ ? "," : "", len, annotations[i],
                 annotations[i] + len + 1);
    }
    return written;
}

struct spec_edits spec_annotations_add(const struct input *document, const char *const *annotations, size_t count)
{
    struct spec_annotations found = find_annotations(document, annotations, count);
    char members[sizeof added - 32];
    struct spec_edits edits = {0};
    bool present = found.kind == PRESENT;

    if (!write_members(members, sizeof members, &found, annotations, count))
        return edits;
    if (present)
        snprintf(added, sizeof added, "%s%s", members, found.empty ? "" : ",");
    else
        snprintf(added, sizeof added, "%s{%s}%s", found.kind == MISSING ? "\"annotations\":" : "", members,
                 found.kind == MISSING && found.document ? "," : "");
    edits.edit[0] = (struct spec_edit){
        .offset = found.kind == MISSING ? found.top : found.begin,
        .drop = found.kind == IS_NULL ? found.end - found.begin : 0,
        .text = added,
        .len = strlen(added),
    };
    edits.count = 1;
    return edits;
}
