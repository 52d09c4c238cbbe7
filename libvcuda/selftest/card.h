/* Commands about the card: which there are, which is in use, its memory and processes. */
#ifndef SELFTEST_CARD_H
#define SELFTEST_CARD_H

void card_hello(void);
void card_use(void);
void card_memory(void);
void card_processes(void);

#endif
