/*
 * The one line that a user sees: `<program>: <step>: <cause>`, without control characters, whatever stands in the paths
 * that it names. It goes to stderr in a single write, and to the system's log as well: crun sends its hooks' stderr to
 * /dev/null. The shim's goes to the runtime's own log too, the only thing of a failed create that containerd reads.
 */
#ifndef VGPU_GATE_REPORT_H
#define VGPU_GATE_REPORT_H

/* Adds `path` to where lines go, as JSON of runc's kind; NULL: nothing more. It is kept, not copied. */
void report_to_runtime_log(const char *path);

void report(const char *program, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
