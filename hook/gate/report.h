/*
 * The one line that a user sees: `<program>: <step>: <cause>`, without control characters, whatever stands in the paths
 * that it names. It goes to stderr in a single write, and to the system's log as well: crun sends its hooks' stderr to
 * /dev/null.
 */
#ifndef VGPU_GATE_REPORT_H
#define VGPU_GATE_REPORT_H

void report(const char *program, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
