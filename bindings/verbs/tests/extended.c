/* Extended queue pairs and completion queues, where a program goes wrong or several threads poll. */
#include <assert.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { DEPTH = 64, ROUNDS = 20 };

static char memory[4096];
static struct ibv_mr *mr;
static struct ibv_cq_ex *cq;
static struct ibv_qp *qp;
static struct ibv_qp_ex *ex;
static atomic_int polled;
static _Atomic uint64_t sum;

static struct ibv_qp_init_attr_ex attributes(struct ibv_pd *pd) {
    struct ibv_qp_init_attr_ex a = {.send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .qp_type = IBV_QPT_RC, .sq_sig_all = 1};
    a.cap = (struct ibv_qp_cap){.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2, .max_recv_sge = 1, .max_inline_data = 64};
    a.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    a.pd = pd;
    a.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND;
    return a;
}

static void write_one(uint64_t id, uint32_t len) {
    ex->wr_id = id;
    ex->wr_flags = 0;
    ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)memory + 2048);
    ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, len);
}

/* The next completion: its status. Nothing within ten seconds ends the program. */
static enum ibv_wc_status next(uint64_t *id) {
    struct ibv_poll_cq_attr attr = {0};
    time_t until = time(NULL) + 10;
    int code;
    while ((code = ibv_start_poll(cq, &attr)) == ENOENT)
        assert(time(NULL) < until);
    assert(code == 0);
    *id = cq->wr_id;
    enum ibv_wc_status status = cq->status;
    ibv_end_poll(cq);
    return status;
}

static void *poll_some(void *unused) {
    (void)unused;
    struct ibv_poll_cq_attr attr = {0};
    time_t until = time(NULL) + 10;
    while (polled < DEPTH * ROUNDS && time(NULL) < until) {
        if (ibv_start_poll(cq, &attr) != 0)
            continue;
        do {
            assert(cq->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(cq) == IBV_WC_RDMA_WRITE);
            assert(ibv_wc_read_qp_num(cq) == qp->qp_num && ibv_wc_read_vendor_err(cq) == 0);
            sum += cq->wr_id;
            polled++;
        } while (ibv_next_poll(cq) == 0);
        ibv_end_poll(cq);
    }
    return NULL;
}

int main(void) {
    /* The device's file, which UCX looks for; other paths are the system's. */
    struct stat file;
    const char *path = "/dev/infiniband/ringbell0";
    assert(stat(path, &file) == 0 && S_ISCHR(file.st_mode) && access(path, R_OK | W_OK) == 0);
    assert(access(path, X_OK) == -1 && errno == EACCES);
    assert(stat("/dev/null", &file) == 0 && S_ISCHR(file.st_mode) && file.st_rdev != 0);
    assert(stat("/dev/infiniband-not-there", &file) == -1 && errno == ENOENT);
    assert(access("/dev/infiniband-not-there", R_OK) == -1 && errno == ENOENT);
    struct ibv_context *context = ibv_open_device(ibv_get_device_list(NULL)[0]);
    assert(context);
    struct ibv_device_attr_ex device;
    assert(ibv_query_device_ex(context, NULL, &device) == 0 && device.phys_port_cnt_ex == 1 && device.orig_attr.max_ah > 0);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    /* Room for everything that is posted: the threads that poll may not run for a while. */
    struct ibv_cq_init_attr_ex wanted = {.cqe = DEPTH * ROUNDS + 1, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
    assert(ibv_create_cq_ex(context, &wanted) == NULL && errno == EOPNOTSUPP);
    wanted.wc_flags = IBV_WC_STANDARD_FLAGS;
    cq = ibv_create_cq_ex(context, &wanted);
    assert(pd && mr && cq);

    struct ibv_qp_init_attr_ex attr = attributes(pd);
    attr.send_ops_flags |= IBV_QP_EX_WITH_TSO;
    assert(ibv_create_qp_ex(context, &attr) == NULL && errno == EOPNOTSUPP);
    attr = attributes(pd);
    attr.comp_mask &= ~(uint32_t)IBV_QP_INIT_ATTR_PD;
    assert(ibv_create_qp_ex(context, &attr) == NULL && errno == EINVAL);
    attr = attributes(pd);
    qp = ibv_create_qp_ex(context, &attr);
    assert(qp && (ex = ibv_qp_to_qp_ex(qp)));
    attr.comp_mask = IBV_QP_INIT_ATTR_PD;
    struct ibv_qp *plain = ibv_create_qp_ex(context, &attr);
    assert(plain && ibv_qp_to_qp_ex(plain) == NULL && ibv_destroy_qp(plain) == 0);

    /* Before RTS nothing is posted. */
    ibv_wr_start(ex);
    write_one(1, 8);
    assert(ibv_wr_complete(ex) == EINVAL);

    /* Connected to itself. */
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    assert(ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num, .min_rnr_timer = 1};
    to.ah_attr.is_global = to.ah_attr.port_num = 1;
    assert(ibv_query_gid(context, 1, 0, &to.ah_attr.grh.dgid) == 0);
    assert(ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7};
    assert(ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                      IBV_QP_MAX_QP_RD_ATOMIC) == 0);

    /* All or none: the last of these is wrong, then there is one too many, then the program gives up. */
    uint64_t id;
    ibv_wr_start(ex);
    write_one(2, 8);
    struct ibv_sge three[3] = {{0}};
    ex->wr_id = 3;
    ibv_wr_send(ex);
    ibv_wr_set_sge_list(ex, 3, three);
    assert(ibv_wr_complete(ex) == EINVAL);
    ibv_wr_start(ex);
    for (int i = 0; i <= DEPTH; i++)
        write_one(4, 8);
    assert(ibv_wr_complete(ex) == ENOMEM);
    ibv_wr_start(ex);
    write_one(5, 8);
    ibv_wr_abort(ex);
    ibv_wr_start(ex);
    assert(ibv_wr_complete(ex) == 0);
    struct ibv_poll_cq_attr none = {0}, unknown = {.comp_mask = 1};
    assert(ibv_start_poll(cq, &none) == ENOENT && ibv_start_poll(cq, &unknown) == EINVAL);

    /* Inline bytes are taken at once. */
    char first[] = "in", second[] = "line";
    struct ibv_data_buf parts[] = {{first, 2}, {NULL, 0}, {second, 5}};
    ibv_wr_start(ex);
    ex->wr_id = 6;
    ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)memory + 100);
    ibv_wr_set_inline_data_list(ex, 3, parts);
    memset(first, 0, sizeof first);
    memset(second, 0, sizeof second);
    assert(ibv_wr_complete(ex) == 0);
    assert(next(&id) == IBV_WC_SUCCESS && id == 6 && strcmp(memory + 100, "inline") == 0);

    /* Four threads poll what one posts. */
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert(pthread_create(&threads[i], NULL, poll_some, NULL) == 0);
    uint64_t expected = 0;
    time_t until = time(NULL) + 10;
    for (int round = 0; round < ROUNDS; round++) {
        int code = ENOMEM;
        while (code == ENOMEM && time(NULL) < until) {
            ibv_wr_start(ex);
            for (uint64_t i = 0; i < DEPTH; i++)
                write_one(round * DEPTH + i, 16);
            code = ibv_wr_complete(ex);
        }
        assert(code == 0);
        for (uint64_t i = 0; i < DEPTH; i++)
            expected += round * DEPTH + i;
    }
    for (int i = 0; i < 4; i++)
        assert(pthread_join(threads[i], NULL) == 0);
    assert(polled == DEPTH * ROUNDS && sum == expected);
    assert(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0 && ibv_dereg_mr(mr) == 0);
    assert(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    return 0;
}
