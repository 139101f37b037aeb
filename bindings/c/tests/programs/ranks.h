/* Ranks as threads of one program. */
#ifndef RANKS_H
#define RANKS_H

#include <pthread.h>

#include "nic.h"

#define RANKS 2

struct rank {
    rb_nic *nic;
    rb_communicator *comm;
    uint32_t me;
};

/* Makes a communicator over the NICs, and runs `f` as each rank on a thread of its own. */
static void as_ranks(rb_nic **nics, const rb_comm_config *config, void *(*f)(void *)) {
    rb_communicator *comms[RANKS];
    struct rank all[RANKS];
    pthread_t threads[RANKS];
    uint32_t i;
    CHECK(rb_comm_init_all(comms, nics, RANKS, config) == 0);
    for (i = 0; i < RANKS; ++i) {
        all[i].nic = nics[i];
        all[i].comm = comms[i];
        all[i].me = i;
        CHECK(pthread_create(&threads[i], NULL, f, &all[i]) == 0);
    }
    for (i = 0; i < RANKS; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
}

#endif /* RANKS_H */
