/* Two processes with a queue pair each: one sends a message, and writes to the other's memory.
 *
 * rdma-core's header, and our library in place of libibverbs. Where the packets go: RINGBELL_VERBS_ADDR, RINGBELL_VERBS_PORT. */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 4096, HALF = BYTES / 2, DEADLINE_S = 10 };

/* What a peer must know. Here a socket pair carries it; between hosts use a connection of your own. */
struct address {
    union ibv_gid gid;
    uint32_t number, rkey;
    uint64_t memory;
};

#define CHECK(call) \
    do { \
        if (!(call)) { \
            perror(#call); \
            return 1; \
        } \
    } while (0)

/* Polls until the next completion; 0 when there is none in time, or a failed one. */
static int next_completion(struct ibv_cq *cq, struct ibv_wc *wc) {
    time_t until = time(NULL) + DEADLINE_S;
    int found;
    while ((found = ibv_poll_cq(cq, 1, wc)) == 0 && time(NULL) < until) {
    }
    if (found == 1 && wc->status != IBV_WC_SUCCESS)
        fprintf(stderr, "request %d: %s\n", (int)wc->wr_id, ibv_wc_status_str(wc->status));
    return found == 1 && wc->status == IBV_WC_SUCCESS;
}

static int connect_qp(struct ibv_qp *qp, const struct address *peer) {
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = peer->number,
                              .max_dest_rd_atomic = 1, .min_rnr_timer = 12};
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    rtr.ah_attr.is_global = 1;
    rtr.ah_attr.port_num = 1;
    rtr.ah_attr.grh.dgid = peer->gid;
    return ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0 &&
           ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0 &&
           ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0;
}

static int run(int link, int sends) {
    static char memory[BYTES];
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = ibv_open_device(list[0]);
    CHECK(context);
    ibv_free_device_list(list);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1};
    attr.cap = (struct ibv_qp_cap){.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1};
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);
    CHECK(pd && cq && mr && qp);

    struct address mine = {.number = qp->qp_num, .rkey = mr->rkey, .memory = (uintptr_t)memory}, peer;
    CHECK(ibv_query_gid(context, 1, 0, &mine.gid) == 0);
    CHECK(write(link, &mine, sizeof mine) == sizeof mine && read(link, &peer, sizeof peer) == sizeof peer);
    CHECK(connect_qp(qp, &peer));

    struct ibv_sge piece = {.addr = (uintptr_t)memory, .length = HALF, .lkey = mr->lkey};
    struct ibv_wc wc;
    if (sends) {
        strcpy(memory, "written without a receive");
        struct ibv_send_wr to_memory = {.wr_id = 1, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
        to_memory.wr.rdma.remote_addr = peer.memory + HALF;
        to_memory.wr.rdma.rkey = peer.rkey;
        CHECK(ibv_post_send(qp, &to_memory, &bad) == 0 && next_completion(cq, &wc));
        strcpy(memory, "sent to a receive");
        struct ibv_send_wr message = {.wr_id = 2, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND};
        /* The receive may be posted later than this: the queue pair waits (RNR) and tries again. */
        CHECK(ibv_post_send(qp, &message, &bad) == 0 && next_completion(cq, &wc));
    } else {
        struct ibv_recv_wr receive = {.wr_id = 3, .sg_list = &piece, .num_sge = 1}, *bad;
        CHECK(ibv_post_recv(qp, &receive, &bad) == 0 && next_completion(cq, &wc));
        /* What was written before the message lies there as well. */
        printf("%s: \"%s\", \"%s\"\n", ibv_get_device_name(context->device), memory, memory + HALF);
        if (strcmp(memory, "sent to a receive") != 0 || strcmp(memory + HALF, "written without a receive") != 0)
            return 1;
    }
    return ibv_destroy_qp(qp) || ibv_dereg_mr(mr) || ibv_destroy_cq(cq) || ibv_dealloc_pd(pd) || ibv_close_device(context);
}

int main(void) {
    int link[2], status;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, link) == 0);
    /* Before the device is opened: a context belongs to its process. */
    pid_t child = fork();
    CHECK(child >= 0);
    close(link[child != 0]);
    if (child == 0)
        _exit(run(link[1], 1));
    int failed = run(link[0], 0);
    close(link[0]);
    CHECK(waitpid(child, &status, 0) == child);
    return failed || status != 0;
}
