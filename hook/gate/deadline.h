/*
 * The end of a start that never ends. What the interpreter opens below a container's root may be a file system that
 * never answers (FUSE), or a file whose every open waits for a program of another container (fanotify). Some such waits
 * not even SIGKILL ends. So a child runs the interpreter, and this process, which opens nothing there, answers the runtime.
 *
 * Belongs here: the two processes, what the child writes, and the time. Not here: what the child runs (interpreter.h).
 */
#ifndef VGPU_GATE_DEADLINE_H
#define VGPU_GATE_DEADLINE_H

/*
 * In the child NULL, or the step that failed: the caller becomes the interpreter there. The child dies with its parent.
 *
 * In the parent it returns only a step that failed. Otherwise it passes on what the child writes to stdout and stderr,
 * and exits as the child does; or with 1 and a line, when the child has made no progress for VGPU_HOOK_SECONDS. The child
 * is killed then, and what it did is undone as after any kill of it: its own child undoes the mounts, and the claim of a
 * container that does not start counts nowhere.
 */
const char *deadline_fork(const char *program);

#endif
