/* The lanes of one block of the emulated GPU: fibres on one OS thread.
 *
 * A lane runs until it meets a barrier, a warp operation or a wait; then it switches to the block's
 * scheduler, which runs on the OS thread's own stack and picks the next runnable lane. Lanes never
 * move to another OS thread, so `thread_local` is per block, as `__shared__` needs it.
 *
 * For g++ only (C++20). Everything is inline and hidden: each module (the SDK's kernels, a user's
 * shared object) carries its own copy, so that nothing has to be exported from the program that loads it.
 *
 * Stacks: one mapping per OS thread, a slice per lane, with a canary at the lower end that is checked
 * at every switch away from the lane; a lane that overran it is reported and the process aborted,
 * because a neighbour's stack is already damaged. Kernels must not throw: unwinding ends at the lane.
 */
#ifndef RINGBELL_FIBER_H
#define RINGBELL_FIBER_H

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <sched.h>
#include <sys/mman.h>
#include <time.h>
/* RB_EMU_UCONTEXT forces the portable context switch, for tests. */
#if defined(__x86_64__) && !defined(RB_EMU_UCONTEXT)
#define RB_EMU_X86_64
#elif defined(__aarch64__) && !defined(RB_EMU_UCONTEXT)
#define RB_EMU_AARCH64
#else
#include <ucontext.h>
#endif

#define RB_EMU_HIDDEN __attribute__((visibility("hidden")))

/* rb_emu_switch(void **save, void *load): stores the callee-saved registers and the stack pointer of
 * the running context, and continues the one that `load` was saved from. */
#if defined(RB_EMU_X86_64)
/* System V ABI §3.2.1: rbx, rbp, r12-r15 belong to the caller. The FPU control words are not
 * switched: a kernel that changes its rounding mode changes it for its block. */
asm(R"(
  .pushsection .text
  .weak rb_emu_switch
  .hidden rb_emu_switch
  .type rb_emu_switch, @function
rb_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size rb_emu_switch, .-rb_emu_switch
  .popsection
)");
extern "C" RB_EMU_HIDDEN void rb_emu_switch(void **save, void *load);
#elif defined(RB_EMU_AARCH64)
/* AAPCS64 §6.1: x19-x29, the link register and d8-d15 belong to the caller. */
asm(R"(
  .pushsection .text
  .weak rb_emu_switch
  .hidden rb_emu_switch
  .type rb_emu_switch, %function
rb_emu_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
  .size rb_emu_switch, .-rb_emu_switch
  .popsection
)");
extern "C" RB_EMU_HIDDEN void rb_emu_switch(void **save, void *load);
#else
/* Other machines: ucontext, which is slower (a system call per switch) but everywhere. */
inline RB_EMU_HIDDEN void rb_emu_switch(void **save, void *load) {
  ucontext_t here;
  *save = &here;
  swapcontext(&here, static_cast<ucontext_t *>(load));
}
#endif

namespace rb {
namespace emu {

struct dim {
  unsigned x, y, z;
};

/* The wait hook of a queue handle; see nic-abi/src/queue.rs. */
typedef uint32_t (*wait_hook_fn)(void *ctx, const volatile uint64_t *word, uint32_t ticket_plus_1, uint32_t idle);

/* The result of a block, returned by `rb_emu_run_block`. */
enum outcome : int { FINISHED = 0, DEADLOCK = 1, TRAPPED = 2, NO_MEMORY = 3, BAD_SHAPE = 4 };

enum lane_state : uint8_t { RUNNABLE, AT_BARRIER, AT_WARP, WAITING, DONE };

struct lane {
  void *sp;
  dim tid;
  unsigned index;
  lane_state state;
  /* Warp operation: this lane's value, and its result. */
  uint32_t warp_mask;
  int warp_src;
  uint64_t warp_value;
  uint64_t warp_result;
  uint64_t *canary;
};

struct warp_group {
  uint32_t mask, arrived;
};
struct warp {
  uint32_t live;
  unsigned groups;
  warp_group group[32];
};

constexpr unsigned MAX_LANES = 1024;
/* Slices of the stack mapping: the first is a guard below lane 0, which has no neighbour to overrun. */
constexpr unsigned SLICES = MAX_LANES + 1;
constexpr uint64_t CANARY = 0x72626c6c'63616e61ull;

struct block {
  void (*body)(void **) = nullptr;
  void **args = nullptr;
  dim grid{}, shape{}, index{};
  unsigned lanes = 0, live = 0;
  void *scheduler = nullptr;
  lane *lane_of = nullptr;
  warp *warp_of = nullptr;
  /* Runnable lanes, first come first served. Each lane is in it at most once. */
  uint16_t ready[MAX_LANES];
  unsigned ready_head = 0, ready_count = 0;
  /* __syncthreads and its counting variants. */
  unsigned at_barrier = 0;
  unsigned predicate_count = 0, predicate_result = 0;
  /* The wait of a lane that switched away with WAITING. */
  wait_hook_fn hook = nullptr;
  void *hook_ctx = nullptr;
  const volatile uint64_t *hook_word = nullptr;
  uint32_t hook_ticket = 0, hook_idle = 0, hook_answer = 0;
  unsigned waits = 0, block_idle = 0;
  unsigned rmw_budget = 64;
  bool trapped = false;
  jmp_buf trap_exit; /* single-lane blocks run on the OS stack */
};

/* Per OS thread; constinit, so that no access goes through an initialisation guard. */
inline constinit thread_local block *this_block RB_EMU_HIDDEN = nullptr;
inline constinit thread_local lane *this_lane RB_EMU_HIDDEN = nullptr;

/* Memory of one OS thread's lanes, kept from block to block. */
struct arena {
  char *stacks = nullptr;
  size_t bytes = 0;
  lane *lanes = nullptr;
  warp *warps = nullptr;
  ~arena() {
    if (stacks) munmap(stacks, bytes);
    std::free(lanes);
    std::free(warps);
  }
};
inline thread_local arena this_arena RB_EMU_HIDDEN;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

inline uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return uint64_t(t.tv_sec) * 1000000000ull + uint64_t(t.tv_nsec);
}

inline void make_ready(block &b, lane &l) {
  l.state = RUNNABLE;
  b.ready[(b.ready_head + b.ready_count++) % MAX_LANES] = uint16_t(l.index);
}

inline void check_canary(const lane &l) {
  if (*l.canary == CANARY) return;
  std::fprintf(stderr,
               "ringbell: lane %u overran its %zu-byte stack on the emulated GPU; use less local memory per thread "
               "or raise EmulatedGpuConfig::lane_stack_bytes\n",
               l.index, this_arena.bytes / SLICES);
  std::abort();
}

/* Leaves the lane until the scheduler picks it again. */
inline void leave(lane_state why) {
  lane *l = this_lane;
  l->state = why;
  rb_emu_switch(&l->sp, this_block->scheduler);
}

/* Completes every warp operation of `w` whose live lanes have all arrived. */
inline void settle_warp(block &b, unsigned warp_index) {
  warp &w = b.warp_of[warp_index];
  for (unsigned g = 0; g < w.groups;) {
    uint32_t need = w.group[g].mask & w.live;
    uint32_t got = w.group[g].arrived;
    if (need & ~got) {
      ++g;
      continue;
    }
    lane *base = b.lane_of + warp_index * 32;
    uint64_t ballot = 0;
    for (unsigned i = 0; i < 32; ++i)
      if ((got >> i & 1) && base[i].warp_value) ballot |= 1ull << i;
    for (unsigned i = 0; i < 32; ++i) {
      if (!(got >> i & 1)) continue;
      int s = base[i].warp_src;
      /* A lane outside the mask gives no value; CUDA leaves the result undefined, we return our own. */
      base[i].warp_result = s < 0 ? ballot : (got >> s & 1) ? base[s].warp_value : base[i].warp_value;
    }
    w.group[g] = w.group[--w.groups];
    for (unsigned i = 0; i < 32; ++i)
      if (got >> i & 1) make_ready(b, base[i]);
  }
}

/* Releases __syncthreads when every lane that has not returned is there (compute capability 7.0 on). */
inline void settle_barrier(block &b) {
  if (!b.at_barrier || b.at_barrier != b.live) return;
  b.at_barrier = 0;
  b.predicate_result = b.predicate_count;
  b.predicate_count = 0;
  for (unsigned i = 0; i < b.lanes; ++i)
    if (b.lane_of[i].state == AT_BARRIER) make_ready(b, b.lane_of[i]);
}

/* __syncthreads_count: how many lanes came with a true predicate. */
inline unsigned barrier(bool predicate) {
  block &b = *this_block;
  if (b.lanes == 1) return predicate;
  b.predicate_count += predicate;
  ++b.at_barrier;
  leave(AT_BARRIER);
  return b.predicate_result;
}

/* Warp rendezvous: returns lane `src`'s value, or with src < 0 the ballot of non-zero values. */
inline uint64_t warp_exchange(uint32_t mask, uint64_t value, int src) {
  block &b = *this_block;
  if (b.lanes == 1) return src < 0 ? (value != 0) : value;
  lane &l = *this_lane;
  l.warp_value = value;
  l.warp_src = src;
  l.warp_mask = mask | 1u << (l.index & 31);
  warp &w = b.warp_of[l.index >> 5];
  unsigned g = 0;
  while (g < w.groups && w.group[g].mask != l.warp_mask) ++g;
  if (g == w.groups) w.group[w.groups++] = warp_group{l.warp_mask, 0};
  w.group[g].arrived |= 1u << (l.index & 31);
  leave(AT_WARP);
  return l.warp_result;
}

/* A lane waits for something outside the block: `word >> 32 == ticket_plus_1`, or anything (null).
 * Returns what the hook returned. The hook runs on the OS thread's stack, never on a lane's. */
inline uint32_t wait(wait_hook_fn hook, void *ctx, const volatile uint64_t *word, uint32_t ticket_plus_1, uint32_t idle) {
  block *b = this_block;
  if (!b || b->lanes == 1) {
    if (hook) return hook(ctx, word, ticket_plus_1, idle);
    idle < 512 ? relax() : (void)sched_yield();
    return 0;
  }
  b->hook = hook;
  b->hook_ctx = ctx;
  b->hook_word = word;
  b->hook_ticket = ticket_plus_1;
  b->hook_idle = idle;
  leave(WAITING);
  return b->hook_answer;
}

/* Lets the other lanes of the block run. */
inline void yield_lane() { wait(nullptr, nullptr, nullptr, 0, 0); }

/* Ends the block with an error (`__trap`). */
[[noreturn]] inline void trap() {
  block *b = this_block;
  if (!b) std::abort();
  b->trapped = true;
  if (b->lanes == 1) longjmp(b->trap_exit, 1);
  for (;;) leave(WAITING);
}

inline void lane_main() {
  this_block->body(this_block->args);
  for (;;) leave(DONE);
}

inline void start_lane(lane &l, char *stack, size_t bytes) {
  l.canary = reinterpret_cast<uint64_t *>(stack);
  *l.canary = CANARY;
  /* Equal offsets in every slice would put all stack tops into the same cache sets. */
  char *top = stack + bytes - (size_t(l.index) * 192 % 4096) / 16 * 16;
#if defined(RB_EMU_X86_64)
  void **frame = reinterpret_cast<void **>(top);
  frame[-1] = nullptr; /* a return address for lane_main, which never returns */
  frame[-2] = reinterpret_cast<void *>(&lane_main);
  for (int i = 3; i <= 8; ++i) frame[-i] = nullptr;
  l.sp = frame - 8;
#elif defined(RB_EMU_AARCH64)
  std::memset(top - 160, 0, 160);
  reinterpret_cast<void **>(top - 160)[11] = reinterpret_cast<void *>(&lane_main);
  l.sp = top - 160;
#else
  ucontext_t *c = reinterpret_cast<ucontext_t *>(stack + 64);
  getcontext(c);
  c->uc_stack.ss_sp = stack + 64 + sizeof(ucontext_t);
  c->uc_stack.ss_size = size_t(top - stack) - 64 - sizeof(ucontext_t);
  c->uc_link = nullptr;
  makecontext(c, &lane_main, 0);
  l.sp = c;
#endif
}

/* Serves the wait of the lane that has just left; it stays runnable. */
inline void serve_wait(block &b, lane &l) {
  b.hook_answer = 0;
  if (b.ready_count == 0) { /* the only runnable lane: the hook may park on its word */
    if (b.hook)
      b.hook_answer = b.hook(b.hook_ctx, b.hook_word, b.hook_ticket, b.hook_idle);
    else
      b.hook_idle < 512 ? relax() : (void)sched_yield();
    b.waits = b.block_idle = 0;
  } else if (b.hook && ++b.waits > b.ready_count + 1) {
    /* Several lanes wait: one call per round. Rounds are one longer than the queue, so that the lane
     * that calls changes, and with it the NIC that is stepped when lanes use different ones. */
    b.waits = 0;
    b.hook_answer = b.hook(b.hook_ctx, nullptr, 0, b.block_idle++);
    if (b.hook_answer) b.block_idle = 0;
  }
  make_ready(b, l);
}

inline void describe_deadlock(const block &b, char *text, size_t len) {
  unsigned barrier = 0, in_warp = 0, done = 0;
  const lane *odd = nullptr;
  for (unsigned i = 0; i < b.lanes; ++i) {
    const lane &l = b.lane_of[i];
    barrier += l.state == AT_BARRIER;
    done += l.state == DONE;
    if (l.state == AT_WARP && !in_warp++) odd = &l;
  }
  std::snprintf(text, len,
                "divergent barrier in block (%u,%u,%u): %u lanes wait at __syncthreads, %u at a warp operation%s, %u have "
                "returned, none can run",
                b.index.x, b.index.y, b.index.z, barrier, in_warp, "", done);
  if (odd) {
    size_t n = std::strlen(text);
    std::snprintf(text + n, len - n, "; lane %u waits for mask %#x of its warp", odd->index, odd->warp_mask);
  }
}

inline outcome run_fibers(block &b, size_t stack_bytes, char *text, size_t len) {
  arena &a = this_arena;
  if (a.bytes < stack_bytes * SLICES) {
    if (a.stacks) munmap(a.stacks, a.bytes);
    void *p = mmap(nullptr, stack_bytes * SLICES, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    a.stacks = p == MAP_FAILED ? nullptr : static_cast<char *>(p);
    a.bytes = a.stacks ? stack_bytes * SLICES : 0;
    if (a.stacks) mprotect(a.stacks, stack_bytes, PROT_NONE);
    if (!a.lanes) a.lanes = static_cast<lane *>(std::calloc(MAX_LANES, sizeof(lane)));
    if (!a.warps) a.warps = static_cast<warp *>(std::calloc(MAX_LANES / 32, sizeof(warp)));
  }
  if (!a.stacks || !a.lanes || !a.warps) {
    std::snprintf(text, len, "no memory for %u lane stacks of %zu bytes", b.lanes, stack_bytes);
    return NO_MEMORY;
  }
  size_t slice = a.bytes / SLICES;
  b.lane_of = a.lanes;
  b.warp_of = a.warps;
  for (unsigned i = 0; i < b.lanes; ++i) {
    lane &l = a.lanes[i];
    l.index = i;
    l.tid = dim{i % b.shape.x, i / b.shape.x % b.shape.y, i / (b.shape.x * b.shape.y)};
    if (i % 32 == 0) a.warps[i / 32] = warp{};
    a.warps[i / 32].live |= 1u << (i % 32);
    start_lane(l, a.stacks + (i + 1) * slice, slice);
    make_ready(b, l);
  }
  b.live = b.lanes;
  while (b.live && !b.trapped) {
    if (!b.ready_count) {
      describe_deadlock(b, text, len);
      return DEADLOCK;
    }
    lane &l = a.lanes[b.ready[b.ready_head]];
    b.ready_head = (b.ready_head + 1) % MAX_LANES;
    --b.ready_count;
    this_lane = &l;
    rb_emu_switch(&b.scheduler, l.sp);
    check_canary(l);
    switch (l.state) {
      case DONE:
        --b.live;
        b.warp_of[l.index / 32].live &= ~(1u << (l.index % 32));
        settle_warp(b, l.index / 32);
        settle_barrier(b);
        break;
      case AT_BARRIER: settle_barrier(b); break;
      case AT_WARP: settle_warp(b, l.index / 32); break;
      case WAITING: serve_wait(b, l); break;
      case RUNNABLE: break;
    }
  }
  return b.trapped ? TRAPPED : FINISHED;
}

/* Runs one block to its end on the calling OS thread. */
inline int run_block(void (*body)(void **), void **args, const dim *grid, const dim *shape, const dim *index,
                     size_t stack_bytes, char *text, size_t len) {
  unsigned long lanes = 1ul * shape->x * shape->y * shape->z;
  if (lanes == 0 || lanes > MAX_LANES) {
    std::snprintf(text, len, "a block has 1 to %u lanes, not %lu", MAX_LANES, lanes);
    return BAD_SHAPE;
  }
  /* Not on the stack of a thread that may be small; reused, because `ready` alone is 2 KiB. */
  static thread_local block storage;
  block &b = storage;
  b = block{};
  b.body = body;
  b.args = args;
  b.grid = *grid;
  b.shape = *shape;
  b.index = *index;
  b.lanes = unsigned(lanes);
  this_block = &b;
  outcome end = FINISHED;
  if (b.lanes == 1) {
    lane only{};
    this_lane = &only;
    if (setjmp(b.trap_exit) == 0)
      body(args);
    else
      end = TRAPPED;
  } else {
    end = run_fibers(b, stack_bytes, text, len);
  }
  if (end == TRAPPED) std::snprintf(text, len, "block (%u,%u,%u) called __trap()", index->x, index->y, index->z);
  this_block = nullptr;
  this_lane = nullptr;
  return end;
}

} // namespace emu
} // namespace rb

#endif /* RINGBELL_FIBER_H */
