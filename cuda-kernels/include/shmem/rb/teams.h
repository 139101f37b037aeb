/* Teams: some PEs of another team, with numbers of their own. A team of several is a communicator, which the PEs of its parent divide.
 *
 * Collectives take a team; puts, gets and atomics name PEs by their number in the world.
 */
#ifndef RINGBELL_SHMEM_TEAMS_H
#define RINGBELL_SHMEM_TEAMS_H

#include "host.h"
#include "state.h"

namespace rb {
namespace shmem {

/* A team by its number; null: there is none. */
RB_DEVICE const team *find_team(nvshmem_team_t number) {
  const team *t = reinterpret_cast<const team *>(world().teams) + number;
  return number >= 0 && number < MAX_TEAMS && t->size > 0 ? t : nullptr;
}

/* The same, or the end of the kernel. A copy: a thread that has a queue to itself writes into it. */
RB_DEVICE team team_of(nvshmem_team_t number, const char *call) {
  const team *t = find_team(number);
  if (!t) fail(call, -1, RB_STATUS_BAD_COMMUNICATOR, rb_u64(number));
  return *t;
}

/* The host's. Before the NIC is open there are those of the library. */
inline const team *host_team_of(nvshmem_team_t number) {
  process &p = here();
  if (number < 0 || number >= MAX_TEAMS || !p.joined) return nullptr;
  if (!p.open) open();
  const team &t = p.teams[number].device;
  return t.size > 0 ? &t : nullptr;
}

/* Which PEs of its parent a new team has: first + i * stride, i below size. */
struct members {
  int first, stride, size;
};

/* The PEs of `parent` divide it: those of one colour are a team, with these members and in this order. Every PE calls it; one of
 * RB_SPLIT_NOCOLOR gets no team. */
inline int divide(nvshmem_team_t parent, uint32_t color, int order, const members &m, const nvshmem_team_config_t *config, long mask,
                  nvshmem_team_t *made) {
  process &p = here();
  const host_team from = p.teams[parent];
  rb_communicator *comm = nullptr, *divided = parent == NVSHMEM_TEAM_WORLD ? p.comm : from.comm;
  if (divided && rb_comm_split(divided, color, order, &comm)) {
    fprintf(stderr, "ringbell: nvshmem_team_split: %s\n", rb_last_error());
    return -1;
  }
  if (color == RB_SPLIT_NOCOLOR) return 0;
  for (int number = NVSHMEMX_TEAM_SAME_MYPE_NODE + 1; number < MAX_TEAMS; ++number) {
    host_team &t = p.teams[number];
    if (t.device.size) continue;
    t.comm = comm;
    t.device = team{rb_comm{}, from.device.in_world(m.first), m.stride * from.device.stride, m.size, order};
    if (config && (mask & NVSHMEM_TEAM_CONFIG_MASK_NUM_CONTEXTS)) t.config.num_contexts = config->num_contexts;
    if (comm) need("the handle of a team", rb_comm_kernel_handle(comm, &t.device.comm));
    need_cuda("a team", show(number));
    *made = number;
    return 0;
  }
  fprintf(stderr, "ringbell: nvshmem_team_split: this PE has %d teams already; destroy some\n", MAX_TEAMS);
  if (comm) need("the end of a team", rb_comm_destroy(comm));
  return -1;
}

} // namespace shmem
} // namespace rb

/* Every PE of `parent` calls these. Those that do not belong to the new team get NVSHMEM_TEAM_INVALID. Nonzero: the team
 * cannot be. */
inline int nvshmem_team_split_strided(nvshmem_team_t parent, int start, int stride, int size, const nvshmem_team_config_t *config,
                                      long mask, nvshmem_team_t *made) {
  *made = NVSHMEM_TEAM_INVALID;
  const rb::shmem::team *t = rb::shmem::host_team_of(parent);
  if (!t || size < 1 || (stride == 0 && size > 1)) return -1;
  if (stride == 0) stride = 1;
  long last = long(start) + long(stride) * (size - 1);
  if (start < 0 || start >= t->size || last < 0 || last >= t->size) return -1;
  int behind = t->rank - start, order = behind / stride;
  bool belongs = behind % stride == 0 && order >= 0 && order < size;
  return rb::shmem::divide(parent, belongs ? 0 : RB_SPLIT_NOCOLOR, order, rb::shmem::members{start, stride, size}, config, mask, made);
}

/* The PEs of `parent` in rows of `xrange`: a team of each row, and of each column. */
inline int nvshmem_team_split_2d(nvshmem_team_t parent, int xrange, const nvshmem_team_config_t *x_config, long x_mask, nvshmem_team_t *x_team,
                                 const nvshmem_team_config_t *y_config, long y_mask, nvshmem_team_t *y_team) {
  *x_team = *y_team = NVSHMEM_TEAM_INVALID;
  const rb::shmem::team *t = rb::shmem::host_team_of(parent);
  if (!t || xrange < 1) return -1;
  int n = t->size, wide = xrange < n ? xrange : n, x = t->rank % wide, y = t->rank / wide;
  rb::shmem::members row{y * wide, 1, n - y * wide < wide ? n - y * wide : wide}, column{x, wide, (n - x + wide - 1) / wide};
  int r = rb::shmem::divide(parent, uint32_t(y), x, row, x_config, x_mask, x_team);
  return r ? r : rb::shmem::divide(parent, uint32_t(x), y, column, y_config, y_mask, y_team);
}

/* Every PE of the team calls it. */
inline void nvshmem_team_destroy(nvshmem_team_t number) {
  if (number <= NVSHMEMX_TEAM_SAME_MYPE_NODE || !rb::shmem::host_team_of(number)) return;
  rb::shmem::host_team &t = rb::shmem::here().teams[number];
  if (t.comm) {
    rb::shmem::need("the end of a team", rb_comm_finalize(t.comm, 0));
    rb::shmem::need("the end of a team", rb_comm_destroy(t.comm));
  }
  t = rb::shmem::host_team{};
  rb::shmem::need_cuda("the end of a team", rb::shmem::show(number));
}

inline void nvshmem_team_get_config(nvshmem_team_t number, nvshmem_team_config_t *config) {
  if (rb::shmem::host_team_of(number)) *config = rb::shmem::here().teams[number].config;
}

#ifdef __CUDA_ARCH__
#define RB_SHMEM_TEAM(NUMBER) rb::shmem::find_team(NUMBER)
#else
#define RB_SHMEM_TEAM(NUMBER) rb::shmem::host_team_of(NUMBER)
#endif

__host__ __device__ __forceinline__ int nvshmem_team_my_pe(nvshmem_team_t number) {
  const rb::shmem::team *t = RB_SHMEM_TEAM(number);
  return t ? t->rank : -1;
}
__host__ __device__ __forceinline__ int nvshmem_team_n_pes(nvshmem_team_t number) {
  const rb::shmem::team *t = RB_SHMEM_TEAM(number);
  return t ? t->size : -1;
}
/* The number in `to` of a PE of `from`; -1: it does not belong to it. */
__host__ __device__ __forceinline__ int nvshmem_team_translate_pe(nvshmem_team_t from, int pe, nvshmem_team_t to) {
  const rb::shmem::team *a = RB_SHMEM_TEAM(from), *b = RB_SHMEM_TEAM(to);
  return a && b && pe >= 0 && pe < a->size ? b->number_of(a->in_world(pe)) : -1;
}
#undef RB_SHMEM_TEAM

#endif /* RINGBELL_SHMEM_TEAMS_H */
