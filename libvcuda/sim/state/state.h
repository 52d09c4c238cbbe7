/*
 * The simulated node: the cards and the ledger of their memory, in one file that every process of every container maps.
 *
 * $VGPU_SIM_DIR/cards has the header, the cards and one slot per process. tools/sim_layout.py mirrors these
 * structures (the layout test of the simulator compares them). The whole cards, which come first, do not change after
 * that. The entries behind them are for MIG's compute instances: each is a card with a parent, and has its own time.
 * tools/sim_mig.py makes and destroys them under the lock while programs run. $VGPU_SIM_DIR/slots is an empty file: byte
 * N is locked while the owner of slot N lives. The bytes from SIM_MAX_SLOTS on belong to the processes of the virtual
 * clock.
 *
 * Liveness must hold across PID namespaces, where a pid has no meaning. A slot's byte is therefore a POSIX record lock:
 * the kernel drops it when its process ends, a forked child does not inherit it, and F_OFD_GETLK (which also sees the
 * locks of the calling process) returns the owner's pid in the caller's namespace. The price: closing any descriptor of
 * `slots` drops the lock, so no code in a process with libcuda may close one. (A program that closes all its
 * descriptors breaks the real driver, too.)
 *
 * Changes of the ledger are made under an OFD lock on byte 0 of `cards`; the kernel releases it when its holder is
 * killed. A robust mutex does not work: the kernel identifies its owner by the pid in the owner's namespace, and every
 * container has a pid 7. Each figure in a slot is one aligned word that only its owner writes, so a kill at any point
 * leaves it correct.
 */
#ifndef SIM_STATE_H
#define SIM_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define SIM_MAGIC "vgpu-sim"
#define SIM_VERSION 8u
#define SIM_MAX_CARDS 32u   /* and instances */
#define SIM_NO_COMPUTE 0xffffffffu
#define SIM_MAX_SLOTS 1024u
#define SIM_MAX_LINKS 18u
#define SIM_LINK_SWITCH 0xfeu /* the link ends at an NVSwitch */
#define SIM_LINK_NONE 0xffu
#define SIM_MAX_WAITING 256u
#define SIM_PERIODS 64u       /* periods of utilization that are remembered */
#define SIM_MAX_SAMPLES 120u
#define SIM_MAX_INCIDENTS 32u
#define SIM_LOST_MARK 0x74736f6cu
#define SIM_MAX_PROCESSES 256u /* processes of the virtual clock */
#define SIM_MAX_THREADS 1024u
#define SIM_MAX_MEETINGS 128u
#define SIM_MEETING_ROUNDS 4u
#define SIM_MAX_SHARES 256u
#define SIM_SHARE_BYTE 4096u   /* of `cards`: byte N from here on is locked while somebody holds memory N */
#define SIM_DEFAULT_DIR "/run/vgpu-sim"

struct sim_header {
	char magic[8];
	uint32_t version;
	uint32_t card_count; /* whole cards */
	uint32_t slot_count;
	uint32_t device_nodes; /* 1: a card is visible where its node can be opened; 0: everywhere */
	uint32_t slot_high;    /* slots from here on were never used; changes under the lock */
	uint32_t slice_ns;     /* how long a context keeps the card while others wait for it */
	uint32_t switch_ns;    /* how long a change from one context to another takes */
	uint32_t kernel_ns;    /* duration of a kernel whose name does not contain one */
	uint32_t driver;       /* enum sim_driver_state; may change at any time */
	uint32_t is_virtual;   /* 1: the virtual clock, see state/virtual.h; 0: the wall clock */
	uint32_t parties;      /* processes that must have registered before virtual time begins */
	uint32_t period_ns;    /* length of a period over which utilization is measured */
	uint32_t wake_ns;      /* a context that was idle for so long ends another's slice at once; 0: it waits */
	uint32_t whole_kernels; /* 1: a slice ends only between kernels */
	uint32_t idle_ns;       /* how long a context without work keeps its slice */
	uint32_t shared_copies; /* 1: the contexts of a card share its copy engines */
	uint32_t event_turn;    /* 1: a stream reaches events and values only while its context has the card */
	uint32_t late_ns;       /* how late a program's thread wakes, on average */
	uint32_t cpu_percent;   /* the part of each 100 ms in which a program's threads run; 0: all of it */
	uint32_t value_look_ns; /* how often a stream that waits for a value looks at it; 0: every 20 us to 1 ms */
	/* What the driver takes beside what is asked for; 0: nothing. README.md has each one's source. */
	uint32_t block_bytes; /* memory comes in blocks of so many; requests up to half of one share a block */
	uint32_t pool_chunk_bytes; /* pools and graph memory grow by so many */
	uint32_t context_unlisted_bytes; /* part of a context that NVML lists with no process */
	uint32_t context_spread_bytes; /* the contexts of every other process take so many more */
	uint32_t each_context; /* 1: each context of a process costs, not only its first one on a card */
	uint32_t teardown_ms; /* how long a process that exits keeps its memory */
	uint32_t context_ms; /* how long it takes to make a context; its memory is there after half of it */
	uint32_t function_bytes; /* code that comes with a function's first launch */
	uint32_t graph_node_bytes; /* of an executable graph, kept for the next one */
	uint32_t stacks; /* 1: a larger stack costs its growth for each thread that the card can run */
	uint32_t stream_bytes;
	uint32_t nvml_lag_ms; /* how old the figure of a card's used memory may be that NVML shows */
	uint32_t instance_count; /* how many instances there have ever been */
	uint8_t reserved[116];
};

struct sim_card {
	uint8_t uuid[16];
	char name[64];
	char serial[16];
	uint64_t memory;       /* bytes, as NVML reports it */
	uint64_t reserved;     /* bytes of it that the driver keeps: CUDA's total is memory - reserved */
	uint64_t context;      /* bytes that a process costs while it has a context on the card */
	uint64_t granularity;  /* allocations are rounded up to a multiple of it */
	uint64_t bar1;
	uint32_t minor;
	uint32_t pci_domain;
	uint32_t pci_bus;
	uint32_t pci_device;
	uint32_t pci_device_id;
	uint32_t pci_subsystem_id;
	int32_t numa_node;
	uint32_t cpu_first;    /* the first of the CPUs near the card */
	uint32_t cpu_count;
	uint32_t sm_count;
	uint32_t compute_major;
	uint32_t compute_minor;
	uint32_t clock_mhz;
	uint32_t memory_clock_mhz;
	uint32_t bus_width;
	uint32_t l2_bytes;
	uint32_t power_limit_mw;
	uint32_t link_count;
	uint8_t links[32]; /* where each NVLink ends: a card's index, SIM_LINK_SWITCH or SIM_LINK_NONE */
	uint8_t relation[SIM_MAX_CARDS]; /* PCIe distance to each card, in NVML's levels: 0, 10, 20, ... 50 */
	/* Of an instance. Its memory is its GPU instance's, which all compute instances there share. */
	uint32_t instance; /* its number, which no other instance ever has; 0: a whole card, or a free entry */
	uint32_t parent;
	uint32_t gi;
	uint32_t ci; /* SIM_NO_COMPUTE: a GPU instance without any compute instance */
	uint32_t gi_slices;
	uint32_t ci_slices;
	uint8_t padding[216];
};

struct sim_slot {
	uint64_t token; /* random; 0: the slot is free */
	int32_t pid; /* in the owner's own PID namespace */
	uint32_t group; /* $VGPU_SIM_GROUP: which container the process stands for, for tests */
	char command[16];
	uint64_t allocated[SIM_MAX_CARDS];
	uint64_t unlisted[SIM_MAX_CARDS]; /* of both others, the bytes that NVML does not list with the process */
	uint64_t context[SIM_MAX_CARDS];
	uint64_t busy_ns[SIM_MAX_CARDS]; /* how long its kernels have run, exactly; tests compare a limiter with it */
	uint32_t wake; /* a futex: something has changed for this process */
	/* Since when its kernels run: the last 32 bits of the time, never 0; 0: none runs. Only with the virtual clock. */
	uint32_t running[SIM_MAX_CARDS];
	uint8_t padding[28];
};

/* A context that has a card or waits for it, identified by its process' slot and its number there. */
struct sim_turn_holder {
	uint64_t token; /* of the slot's owner: distinguishes successive owners; 0: no context */
	uint32_t slot;
	uint32_t context;
};

/* One process' share of one period. */
struct sim_sample {
	uint64_t time_us; /* CLOCK_REALTIME, the end of the period */
	uint32_t slot;
	uint32_t busy_permille;
	uint64_t token;
};

struct sim_incident {
	uint64_t time_us;
	uint64_t type; /* NVML's event types */
	uint64_t data; /* the Xid */
};

/* What changes about a card. Written under the lock. Any process may read it, and a reader must check what it reads. */
struct sim_board {
	struct sim_turn_holder holder;
	struct sim_turn_holder last; /* the context that had it before it became idle */
	uint64_t since; /* beginning of the time slice, ns of sim_clock_now */
	uint64_t until; /* end of the time slice */
	uint32_t waiting_count;
	uint32_t incident_count; /* since the state was made */
	struct sim_turn_holder waiting[SIM_MAX_WAITING]; /* in the order of arrival */
	uint64_t busy_ns; /* since the state was made */
	uint64_t switches; /* changes from one context to another since the state was made */
	uint64_t period[SIM_PERIODS]; /* a period's number: its time divided by the length of a period */
	uint64_t period_ns[SIM_PERIODS]; /* how long the card was busy in that period */
	uint64_t sample_count; /* since the state was made */
	struct sim_sample samples[SIM_MAX_SAMPLES];
	struct sim_incident incidents[SIM_MAX_INCIDENTS];
	uint64_t ecc[4]; /* corrected and uncorrected since boot, corrected and uncorrected ever */
	int32_t temperature; /* 0: the simulator computes it from the load */
	uint32_t power_mw; /* 0: the simulator computes it from the load */
	uint32_t is_lost; /* SIM_LOST_MARK: the card fell off the bus; any other value is ignored */
	uint32_t remapped[4]; /* rows: for corrected, for uncorrected errors; one is pending; one failed */
	uint32_t retired[3]; /* pages: retired for single-bit and for double-bit errors; one is pending */
	uint64_t most_used; /* bytes of all processes at once, since the state was made */
	uint64_t copies_end[2]; /* to and from the card: when the last copy ends, if contexts share the engines */
	uint64_t shown_used; /* what NVML showed last, and when it was new, if NVML lags */
	uint64_t shown_at;
	uint32_t mig_mode[2]; /* of a whole card: 1 is on; now, and after its next reset */
	uint8_t padding[3320];
};

/* A process under the virtual clock. While it lives it locks byte SIM_MAX_SLOTS + its number of `slots`. */
struct sim_timeline_process {
	uint64_t namespace; /* the PID namespace's inode */
	uint64_t start; /* start time from /proc/<pid>/stat */
	int32_t pid; /* 0: free */
	uint32_t rank; /* the lowest rank runs first when several threads are due at once */
	uint32_t sequence; /* number of its last registration of a thread */
	uint32_t reserved;
};

struct sim_timeline_thread {
	uint32_t state; /* enum in state/virtual.c */
	uint32_t process;
	int32_t tid; /* in its own PID namespace; 0: announced, but not created yet */
	uint32_t wake; /* a futex that is woken when `running` may be this thread */
	uint64_t order; /* the rank, then the number of its registration in its process */
};

/* The virtual clock; see state/virtual.h. Only the running thread changes it, except that a thread enters by itself. */
struct sim_timeline {
	uint64_t now;
	uint64_t passes; /* how often one thread handed over to another */
	uint32_t running; /* number of the running thread plus one; 0: no thread runs */
	uint32_t thread_high; /* entries from here on were never used */
	uint32_t process_count; /* how many processes have ever registered */
	uint32_t reserved;
	uint64_t stolen; /* times that a killed or sleeping holder was passed over; not 0: run not repeatable */
	uint64_t due[SIM_MAX_THREADS]; /* when the thread is to run; SIM_NEVER: only when another thread wakes it */
	uint64_t key[SIM_MAX_THREADS]; /* what else may wake the thread; 0: nothing */
	struct sim_timeline_thread threads[SIM_MAX_THREADS];
	struct sim_timeline_process processes[SIM_MAX_PROCESSES];
	uint8_t padding[2008];
};

/* Kernels that wait for each other, on several cards or in several processes; see cuda/work/meeting.c. */
struct sim_meeting {
	uint64_t key; /* identifies the kernels; 0: the entry is free */
	uint64_t round; /* how often these kernels have met */
	uint64_t begun; /* kernels that wait in this round */
	uint64_t met[SIM_MEETING_ROUNDS]; /* for each of the last rounds, when its last kernel began */
};

/*
 * Memory that was exported to other processes. It lives until the last of them lets it go, and then belongs to no slot
 * if the exporter has freed it or has ended.
 */
struct sim_shared_memory {
	uint64_t token; /* of the exporter's slot */
	uint64_t size; /* bytes; 0: the entry is free */
	uint32_t slot;
	uint32_t card;
	uint32_t is_held; /* 1: the exporter pays for it in its slot */
	uint32_t generation; /* counts what the entry was used for: a number and a generation name one memory */
};

struct sim_file {
	struct sim_header header;
	struct sim_card cards[SIM_MAX_CARDS];
	struct sim_slot slots[SIM_MAX_SLOTS];
	struct sim_board boards[SIM_MAX_CARDS];
	struct sim_timeline timeline;
	struct sim_meeting meetings[SIM_MAX_MEETINGS];
	struct sim_shared_memory shares[SIM_MAX_SHARES];
};

_Static_assert(sizeof(struct sim_header) == 256, "sim_header");
_Static_assert(sizeof(struct sim_card) == 512, "sim_card");
_Static_assert(sizeof(struct sim_slot) == 1216, "sim_slot");
_Static_assert(sizeof(struct sim_board) == 12288, "sim_board");
_Static_assert(sizeof(struct sim_timeline) == 51200, "sim_timeline");

enum sim_status {
	SIM_OK = 0,
	SIM_MISSING, /* no state exists: the node has no driver */
	SIM_DAMAGED, /* the state exists but failed a check */
	SIM_SYSTEM, /* a system call failed */
	SIM_NO_MEMORY, /* the card has too little memory left */
	SIM_FULL, /* no slot is left */
	SIM_LOST, /* the card fell off the bus, or the instance was destroyed */
	SIM_MISMATCH, /* the kernel's part of the driver has another version than the libraries */
};

/* State of the kernel's part of the driver. */
enum sim_driver_state { SIM_LOADED, SIM_UNLOADED, SIM_OTHER_VERSION };

struct sim_process {
	pid_t pid; /* in the caller's PID namespace where the kernel can map it, else as the owner wrote it */
	uint64_t used; /* bytes, including its contexts, that NVML lists */
	char command[16];
	unsigned gi, ci; /* the instance on which it is; SIM_NO_COMPUTE: a whole card */
	bool known; /* the kernel can see the process from the caller's PID namespace */
};

/* Maps the state once per process; later calls return the same status. The cards are copied: see sim_state_card. */
enum sim_status sim_state_open(void);
/* True in a child that inherited an open state by fork: a driver is not usable there. */
bool sim_state_forked(void);

/* Valid after sim_state_open. */
unsigned sim_state_card_count(void);
const struct sim_card *sim_state_card(unsigned card);
/*
 * Looks which compute instances the card has, stores their entries in the order of their ids, and returns their number.
 * sim_state_card has them from then on. An entry whose instance is destroyed stays as it is until it is looked at again.
 */
unsigned sim_state_instances(unsigned parent, unsigned entries[SIM_MAX_CARDS]);
/* Whether the entry's instance, as this process knows it, is destroyed. Never for whole cards. */
bool sim_state_gone(unsigned card);
/* Whether MIG is on: now, or after the next reset. */
bool sim_state_mig(unsigned card, bool pending);
/* Whether NVLink joins the two cards, directly or through switches. */
bool sim_state_linked(unsigned a, unsigned b);
/* Stores the cards whose device node this process can open, in the state's order, and returns their number. */
unsigned sim_nodes_visible_cards(unsigned cards[SIM_MAX_CARDS]);
/* The same for the card's compute instances: this process can open both of its nodes in /dev/nvidia-caps. */
unsigned sim_nodes_visible_instances(unsigned parent, unsigned entries[SIM_MAX_CARDS]);
/* Whether this process may look at all instances of a card together. */
bool sim_nodes_monitor(void);
/* Whether this process can open the nodes that belong to no card. Always true if the profile has no nodes. */
bool sim_nodes_control(void);
bool sim_nodes_uvm(void);

/* The present state of the driver: SIM_OK, SIM_MISSING or SIM_MISMATCH. */
enum sim_status sim_ledger_driver_status(void);
/* The present state of one card: the driver's state or SIM_LOST. */
enum sim_status sim_ledger_card_status(unsigned card);

/* The ledger. A process gets its slot with its first context. Each attach is for a context. */
enum sim_status sim_ledger_attach(unsigned card);
void sim_ledger_detach(unsigned card, bool is_last);
enum sim_status sim_ledger_reserve(unsigned card, uint64_t bytes);
void sim_ledger_release(unsigned card, uint64_t bytes);
/* So many more of this process's bytes are not listed with it. */
void sim_ledger_unlist(unsigned card, int64_t change);
enum sim_status sim_ledger_used(unsigned card, uint64_t *bytes);
/* The same as NVML shows it: it may lag. */
enum sim_status sim_ledger_shown(unsigned card, uint64_t *bytes);
/* Memory of this process is exported. Returns its number; -1: it cannot be recorded. */
int sim_shares_add(unsigned card, uint64_t bytes, uint32_t *generation);
/*
 * A descriptor that keeps exported memory on its card until it is closed everywhere. -1: an error, or the exporter has
 * let go of the memory.
 */
int sim_shares_hold(int number, uint32_t generation);
/* The exporter frees the memory: others may still hold it. Replaces sim_ledger_release. */
void sim_shares_release(int number);
/* Nobody but the exporter holds the memory any more: it is not shared. */
void sim_shares_forget(int number);
/* Copies what changes about the card, as it is now. */
enum sim_status sim_ledger_board(unsigned card, struct sim_board *board);
/* As in struct sim_process, the pid of the slot's owner if the slot still has this token; 0: the owner is gone. */
pid_t sim_ledger_pid_of(unsigned slot, uint64_t token, bool *known);

/* How long time slices, changes of context and kernels take, and what the driver takes by itself. */
const struct sim_header *sim_state_header(void);

/* Processes with a context on the card or on an instance of it: stores at most `size`, counts all. */
enum sim_status sim_ledger_processes(unsigned card, struct sim_process *list, unsigned size, unsigned *count);

#endif
