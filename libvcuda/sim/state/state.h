/*
 * The simulated node: cards and the ledger of their memory, in one file that every process of every container maps.
 *
 * $VGPU_SIM_DIR/cards   header, cards, one slot per process; made by simctl.py, which mirrors these structures
 *                       (tests/unit/sim/test_layout.py compares them). Cards do not change after that.
 * $VGPU_SIM_DIR/slots   an empty file: byte N is locked as long as the owner of slot N lives; bytes from SIM_MAX_SLOTS
 *                       on are the processes of the virtual clock.
 *
 * Liveness has to hold across PID namespaces, where a pid means nothing. A slot's byte is a POSIX record lock: the
 * kernel drops it with its process, a forked child does not inherit it, and F_OFD_GETLK (which sees the locks of the
 * asking process, too) tells the owner's pid as the asker's namespace knows it. Its price: closing *any* descriptor
 * of `slots` drops it, so nobody who might share a process with libcuda closes one (a program that closes all its
 * descriptors breaks the real driver, too).
 * Changes of the ledger are made under an OFD lock on byte 0 of `cards`, which a killed holder cannot keep. A robust
 * mutex will not do: the kernel matches its owner by the pid of its own namespace, and every container has a pid 7.
 * Each figure in a slot is one aligned word written only by its owner, so that a kill at any point leaves it true.
 */
#ifndef SIM_STATE_H
#define SIM_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define SIM_MAGIC "vgpu-sim"
#define SIM_VERSION 3u
#define SIM_MAX_CARDS 16u
#define SIM_MAX_SLOTS 1024u
#define SIM_MAX_LINKS 18u
#define SIM_LINK_SWITCH 0xfeu /* the link ends at an NVSwitch */
#define SIM_LINK_NONE 0xffu
#define SIM_MAX_WAITING 256u
#define SIM_PERIODS 64u       /* of utilization that are remembered */
#define SIM_MAX_SAMPLES 120u
#define SIM_MAX_INCIDENTS 32u
#define SIM_LOST_MARK 0x74736f6cu
#define SIM_MAX_PROCESSES 256u /* under the virtual clock */
#define SIM_MAX_THREADS 1024u
#define SIM_MAX_MEETINGS 128u
#define SIM_MEETING_ROUNDS 4u
#define SIM_DEFAULT_DIR "/run/vgpu-sim"

struct sim_header {
	char magic[8];
	uint32_t version;
	uint32_t card_count;
	uint32_t slot_count;
	uint32_t device_nodes; /* 1: a card is visible where its node can be opened; 0: everywhere */
	uint32_t slot_high;    /* slots from here on were never used; changes under the lock */
	uint32_t slice_ns;     /* what a context gets while others wait for the card */
	uint32_t switch_ns;    /* what changing from one context to another costs */
	uint32_t kernel_ns;    /* what a kernel takes whose name does not say otherwise */
	uint32_t driver;       /* enum sim_driver_state; may change at any time */
	uint32_t is_virtual;   /* which clock: see state/virtual.h */
	uint32_t parties;      /* processes that have to be there before virtual time begins */
	uint32_t period_ns;    /* over which utilization is taken */
	uint8_t reserved[200];
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
	uint32_t cpu_first;    /* the CPUs near to it */
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
	uint8_t links[32];                /* where each NVLink ends: a card's index, SIM_LINK_SWITCH or _NONE */
	uint8_t relation[SIM_MAX_CARDS];  /* PCIe distance to each card, in NVML's levels: 0, 10, 20, ... 50 */
	uint8_t padding[256];
};

struct sim_slot {
	uint64_t token;        /* random, zero: free */
	int32_t pid;           /* as the owner's own PID namespace has it */
	uint32_t group;        /* of its environment: whose process it is, for tests */
	char command[16];
	uint64_t allocated[SIM_MAX_CARDS];
	uint64_t context[SIM_MAX_CARDS];
	uint64_t busy_ns[SIM_MAX_CARDS]; /* that its kernels have run: the truth, for tests */
	uint32_t wake;                   /* a futex: something has changed for this process */
	/* Since when its kernels run, the last 32 bits of the time, not zero; 0: none does. By the virtual clock only. */
	uint32_t running[SIM_MAX_CARDS];
	uint8_t padding[28];
};

/* Who waits for, or has, a card: a context, by its process' slot and its number there. */
struct sim_turn_holder {
	uint64_t token; /* of the slot: tells who had it before; 0: nobody */
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

/* What changes about a card. Under the lock; read by anybody, trusted by nobody. */
struct sim_board {
	struct sim_turn_holder holder;
	struct sim_turn_holder last;     /* who had it before it became idle */
	uint64_t since;                  /* the slice's beginning and end, ns of sim_now */
	uint64_t until;
	uint32_t waiting_count;
	uint32_t incident_count;         /* ever */
	struct sim_turn_holder waiting[SIM_MAX_WAITING]; /* first come first */
	uint64_t busy_ns;                /* ever */
	uint64_t switches;               /* from one context to another, ever */
	uint64_t period[SIM_PERIODS];    /* its number: the time by its length, */
	uint64_t period_ns[SIM_PERIODS]; /* and how long the card was busy in it */
	uint64_t sample_count;           /* ever */
	struct sim_sample samples[SIM_MAX_SAMPLES];
	struct sim_incident incidents[SIM_MAX_INCIDENTS];
	uint64_t ecc[4];                 /* corrected and uncorrected since boot, corrected and uncorrected ever */
	int32_t temperature;             /* 0: by its load */
	uint32_t power_mw;               /* 0: by its load */
	uint32_t is_lost;                /* fell off the bus: SIM_LOST_MARK; anything else is not to be believed */
	uint32_t remapped[4];            /* rows: for corrected, for uncorrected errors; one is pending; one failed */
	uint32_t retired[3];             /* pages: for single-bit, for double-bit errors; one is pending */
	uint8_t padding[3368];
};

/* A process that lives in virtual time. Its life is a lock on byte SIM_MAX_SLOTS + its number of `slots`. */
struct sim_timeline_process {
	uint64_t namespace; /* the PID namespace's inode */
	uint64_t start;     /* as /proc/<pid>/stat has it */
	int32_t pid;        /* 0: free */
	uint32_t rank;      /* who is first when several are due */
};

struct sim_timeline_thread {
	uint32_t state;   /* enum in state/virtual.c */
	uint32_t process;
	int32_t tid;      /* in its own PID namespace; 0: announced, not there yet */
	uint32_t wake;    /* a futex: `running` may be this thread */
	uint64_t order;   /* rank, then when it was registered */
};

/* The virtual clock: see state/virtual.h. Changed by the thread that runs, except where a thread enters by itself. */
struct sim_timeline {
	uint64_t now;
	uint64_t passes;        /* from one who runs to the next, ever */
	uint32_t running;       /* the thread that runs, plus one; 0: none */
	uint32_t thread_high;   /* entries from here on were never used */
	uint32_t process_count; /* that came, ever */
	uint32_t sequence;      /* of the last registration */
	uint64_t stolen;        /* turns taken from who slept elsewhere or was killed, ever: no longer repeatable */
	uint64_t due[SIM_MAX_THREADS]; /* when it is to run; SIM_NEVER: not by itself */
	uint64_t key[SIM_MAX_THREADS]; /* what it waits for besides; 0: nothing */
	struct sim_timeline_thread threads[SIM_MAX_THREADS];
	struct sim_timeline_process processes[SIM_MAX_PROCESSES];
	uint8_t padding[4056];
};

/* Kernels that wait for each other, on several cards or in several processes; see cuda/meeting.c. */
struct sim_meeting {
	uint64_t key;   /* which kernels; 0: free */
	uint64_t round; /* how often they have met */
	uint64_t begun; /* kernels that wait in this round */
	uint64_t met[SIM_MEETING_ROUNDS]; /* when the last rounds' last kernel began */
};

struct sim_file {
	struct sim_header header;
	struct sim_card cards[SIM_MAX_CARDS];
	struct sim_slot slots[SIM_MAX_SLOTS];
	struct sim_board boards[SIM_MAX_CARDS];
	struct sim_timeline timeline;
	struct sim_meeting meetings[SIM_MAX_MEETINGS];
};

_Static_assert(sizeof(struct sim_header) == 256, "sim_header");
_Static_assert(sizeof(struct sim_card) == 512, "sim_card");
_Static_assert(sizeof(struct sim_slot) == 512, "sim_slot");
_Static_assert(sizeof(struct sim_board) == 12288, "sim_board");
_Static_assert(sizeof(struct sim_timeline) == 51200, "sim_timeline");

enum sim_status {
	SIM_OK = 0,
	SIM_MISSING,   /* there is no state: no driver on this node */
	SIM_DAMAGED,   /* there is one, and it is not to be trusted */
	SIM_SYSTEM,    /* the operating system refused something */
	SIM_NO_MEMORY, /* the card has too little left */
	SIM_FULL,      /* no slot is left */
	SIM_LOST,      /* the card fell off the bus */
	SIM_MISMATCH,  /* the kernel's part of the driver is of another version than the libraries */
};

/* Of the kernel's part of the driver. */
enum sim_driver_state { SIM_LOADED, SIM_UNLOADED, SIM_OTHER_VERSION };

struct sim_process {
	pid_t pid;         /* as the asker sees it where the kernel knows, else as the owner wrote it */
	uint64_t used;     /* bytes, its contexts included */
	char command[16];
	bool known;        /* the kernel knows him in the asker's PID namespace */
};

/* Map the state, once per process; later calls only say how it went. Cards are copied: see sim_card. */
enum sim_status sim_open(void);
/* True in a child that inherited an open state by fork: a driver is not usable there. */
bool sim_forked(void);

/* Valid after sim_open. */
unsigned sim_card_count(void);
const struct sim_card *sim_card(unsigned card);
/* Are they joined by NVLink, directly or through switches? */
bool sim_linked(unsigned a, unsigned b);
/* Cards whose device node this process can open, in the state's order; the number of them. */
unsigned sim_visible_cards(unsigned cards[SIM_MAX_CARDS]);
/* Can it open the nodes that belong to no card? Always, where the profile has no nodes. */
bool sim_control_node(void);
bool sim_uvm_node(void);

/* How the driver, and one card, are just now: SIM_OK, SIM_MISSING, SIM_MISMATCH; SIM_LOST. */
enum sim_status sim_driver_status(void);
enum sim_status sim_card_status(unsigned card);

/* The ledger. A process gets its slot with its first context. */
enum sim_status sim_attach(unsigned card);
void sim_detach(unsigned card);
enum sim_status sim_reserve(unsigned card, uint64_t bytes);
void sim_release(unsigned card, uint64_t bytes);
enum sim_status sim_used(unsigned card, uint64_t *bytes);
/* What changes about the card, as it is now. */
enum sim_status sim_board(unsigned card, struct sim_board *board);
/* The pid of a slot's owner, while the token is that of the slot; 0: he is gone. */
pid_t sim_pid_of(unsigned slot, uint64_t token);

/* How long slices, changes and kernels take. */
const struct sim_header *sim_timing(void);

/* Processes with a context on the card: at most `size` are stored, all are counted. */
enum sim_status sim_processes(unsigned card, struct sim_process *list, unsigned size, unsigned *count);

#endif
