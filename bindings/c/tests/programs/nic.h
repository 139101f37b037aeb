/* A NIC for the C programs of this folder. */
#ifndef NIC_H
#define NIC_H

#include "check.h"

/* A NIC of address 10.6.`net`.`host` + 1 with a small GPU. */
static rb_nic *open_nic(const char *directory, uint32_t net, uint32_t host) {
    char ip[32];
    rb_nic_config config;
    rb_nic *nic = NULL;
    memset(&config, 0, sizeof config);
    snprintf(ip, sizeof ip, "10.6.%u.%u", net, host + 1);
    config.size = sizeof config;
    config.ip = ip;
    config.transport = "local";
    config.local_directory = directory;
    config.gpu_memory_bytes = 16u << 20;
    CHECK(rb_nic_open(&config, &nic) == 0);
    return nic;
}

#endif /* NIC_H */
