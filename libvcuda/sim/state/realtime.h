/*
 * Keeps the card going while the CPU scheduler stops its programs. A real card works on whatever the kernel's
 * scheduler does with a program. Here the card's work is done by threads of the programs themselves, which a CPU quota
 * would stop in the middle of it, and with them the card of all. With VGPU_SIM_REALTIME=1 those threads, and every
 * thread while it holds a lock of the simulator, are scheduled in real time (SCHED_FIFO), which no quota stops. Where
 * the kernel refuses that, nothing changes.
 */
#ifndef SIM_REALTIME_H
#define SIM_REALTIME_H

#include <pthread.h>
#include <stdbool.h>

/* The calling thread does the card's work: it is scheduled in real time from now on. */
void sim_realtime_stay(void);
bool sim_realtime_stays(void);
/* Between these two calls the calling thread is scheduled in real time. Calls are not nested. */
void sim_realtime_begin(void);
void sim_realtime_end(void);
/* Makes a mutex, which nobody holds, one whose holder is scheduled as the thread that waits for it. */
void sim_realtime_inherit(pthread_mutex_t *mutex);

#endif
