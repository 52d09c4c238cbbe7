/*
 * The message of one line that a user sees: `<program>: <step>: <cause>`. Control characters in it are replaced, since
 * it may contain any path.
 *
 * Belongs here: where the line goes. A single write puts it on stderr. The system's log gets it too, since crun sends
 * its hooks' stderr to /dev/null. The shim also adds it to the runtime's own log, which is all that containerd reads
 * of a failed create.
 */
#ifndef VGPU_GATE_REPORT_H
#define VGPU_GATE_REPORT_H

/*
 * From now on, lines are also appended to the file `path`, as JSON in runc's format. NULL: to no further file. The
 * pointer is kept, the string is not copied.
 */
void report_to_runtime_log(const char *path);

void report(const char *program, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
