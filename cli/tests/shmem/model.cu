// Random operations of every PE against a model: an array for each, to which the host applies what all PEs have drawn.
//
// Every PE draws the operations of all others too, from the same numbers. Each origin has a part of its own in the memory of each
// PE, so that only its own order matters there; sums of shared words do not depend on an order. Gets have no order: each goes
// to a place of its own.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include <nvshmem.h>
#include <nvshmemx.h>

constexpr int PART = 4096, OPS = 90, WORDS = 8, THREADS = 64, PLACE = 2048, GOT = OPS * PLACE;

enum kind : int {
  PUT, PUT_NBI, PUT_FLOAT, PUT_64, GET, GET_NBI, GET_SHORT, P_CHAR, P_INT, P_DOUBLE, G_SHORT, G_INT, G_DOUBLE, PUT_SIGNAL,
  PUT_SIGNAL_NBI, SIGNAL_SET, ADD, FETCH_INC, SWAP, COMPARE_SWAP, OR, XOR, FETCH,
  // Of 32 bits.
  ADD_32, FETCH_ADD_32, INC_32, SWAP_32, COMPARE_SWAP_32, FETCH_AND_32, OR_32, FETCH_32,
  // Strided; the last kinds, as they have several scopes.
  IPUT_FLOAT, IPUT_64, IPUT_128, IGET_INT, IGET_SHORT, KINDS
};
constexpr int SCOPES = 3;

struct op {
  int kind, scope, pe;
  unsigned to, from, bytes, word;
  uint64_t value;
};

// What a PE shares. `counts` and `shorts` are added to by all; `words` and `halves` have WORDS for each origin.
struct shared {
  unsigned char *area;   // a part for each origin
  unsigned char *source; // a part
  unsigned char *got;    // a place for each operation
  uint64_t *counts, *words;
  uint32_t *shorts, *halves;
  uint64_t *results; // of each operation, local
};

#define EACH_SCOPE(CALL, ...) (o.scope == 0 ? nvshmem_##CALL(__VA_ARGS__) : o.scope == 1 ? nvshmemx_##CALL##_warp(__VA_ARGS__) : nvshmemx_##CALL##_block(__VA_ARGS__))

// Of a strided operation: strides, and how many elements of these bytes fit.
__host__ __device__ inline int to_stride(const op &o) { return 1 + int(o.value % 5); }
__host__ __device__ inline int from_stride(const op &o) { return 1 + int(o.value / 8 % 4); }
__host__ __device__ inline size_t elements(const op &o, size_t bytes) { return o.bytes / 5 / bytes; }

// Where a get of this number goes, aligned as its operation is.
__host__ __device__ inline int place(const op &o, int i) { return i * PLACE + int(o.to % 8); }

__device__ void perform(const op &o, int i, const shared &s) {
  uint64_t *result = s.results + i;
  int me = nvshmem_my_pe();
  unsigned char *to = s.area + me * PART + o.to, *from = s.source + o.from, *got = s.got + place(o, i);
  uint64_t *count = s.counts + o.word, *word = s.words + me * WORDS + o.word;
  bool leads = threadIdx.x == 0;
  switch (o.kind) {
  case PUT: nvshmem_putmem(to, from, o.bytes, o.pe); return;
  case PUT_NBI: EACH_SCOPE(putmem_nbi, to, from, o.bytes, o.pe); return;
  case PUT_FLOAT: nvshmemx_float_put_warp((float *)to, (float *)from, o.bytes / 4, o.pe); return;
  case PUT_64: nvshmemx_put64_block(to, from, o.bytes / 8, o.pe); return;
  case GET: EACH_SCOPE(getmem, got, s.source + o.from, o.bytes, o.pe); return;
  case GET_NBI: nvshmemx_getmem_nbi_block(got, s.source + o.from, o.bytes, o.pe); return;
  case GET_SHORT: nvshmemx_short_get_warp((short *)got, (short *)(s.source + o.from), o.bytes / 2, o.pe); return;
  case PUT_SIGNAL: EACH_SCOPE(putmem_signal, to, from, o.bytes, count, o.value, NVSHMEM_SIGNAL_ADD, o.pe); return;
  case PUT_SIGNAL_NBI: nvshmemx_double_put_signal_nbi_block((double *)to, (double *)from, o.bytes / 8, word, o.value, NVSHMEM_SIGNAL_SET, o.pe); return;
  case IPUT_FLOAT: EACH_SCOPE(float_iput, (float *)to, (float *)from, to_stride(o), from_stride(o), elements(o, 4), o.pe); return;
  case IPUT_64: nvshmemx_iput64_warp(to, from, to_stride(o), from_stride(o), elements(o, 8), o.pe); return;
  case IPUT_128: nvshmem_iput128(to, from, to_stride(o), from_stride(o), elements(o, 16), o.pe); return;
  case IGET_INT: EACH_SCOPE(int_iget, (int *)got, (int *)(s.source + o.from), to_stride(o), from_stride(o), elements(o, 4), o.pe); return;
  case IGET_SHORT:
    nvshmemx_short_iget_block((short *)got, (short *)(s.source + o.from), to_stride(o), from_stride(o), elements(o, 2), o.pe);
    return;
  default: break;
  }
  if (!leads) return;
  uint32_t *half = s.halves + me * WORDS + o.word, low = uint32_t(o.value);
  switch (o.kind) {
  case P_CHAR: nvshmem_char_p((char *)to, (char)o.value, o.pe); break;
  case P_INT: nvshmem_int_p((int *)to, (int)o.value, o.pe); break;
  case P_DOUBLE: nvshmem_double_p((double *)to, __longlong_as_double(o.value), o.pe); break;
  case G_SHORT: *result = (uint16_t)nvshmem_short_g((short *)(s.source + o.from), o.pe); break;
  case G_INT: *result = (uint32_t)nvshmem_int_g((int *)(s.source + o.from), o.pe); break;
  case G_DOUBLE: *result = __double_as_longlong(nvshmem_double_g((double *)(s.source + o.from), o.pe)); break;
  case SIGNAL_SET: nvshmemx_signal_op(word, o.value, NVSHMEM_SIGNAL_SET, o.pe); break;
  case ADD: nvshmem_uint64_atomic_add(count, o.value, o.pe); break;
  case FETCH_INC: *result = nvshmem_ulong_atomic_fetch_inc(word, o.pe); break;
  case SWAP: *result = nvshmem_ulonglong_atomic_swap((unsigned long long *)word, o.value, o.pe); break;
  case COMPARE_SWAP: *result = nvshmem_int64_atomic_compare_swap((int64_t *)word, o.from & 1 ? o.to : 0, o.value, o.pe); break;
  case OR: *result = nvshmem_uint64_atomic_fetch_or(word, o.value, o.pe); break;
  case XOR: nvshmem_uint64_atomic_xor(word, o.value, o.pe); break;
  case FETCH: *result = nvshmem_size_atomic_fetch((size_t *)word, o.pe); break;
  case ADD_32: nvshmem_uint_atomic_add(s.shorts + o.word, low, o.pe); break;
  case FETCH_ADD_32: *result = nvshmem_uint32_atomic_fetch_add(half, low, o.pe); break;
  case INC_32: nvshmem_int_atomic_inc((int *)half, o.pe); break;
  case SWAP_32: *result = __float_as_uint(nvshmem_float_atomic_swap((float *)half, __uint_as_float(low), o.pe)); break;
  case COMPARE_SWAP_32: *result = (uint32_t)nvshmem_int32_atomic_compare_swap((int32_t *)half, o.from & 1 ? int(o.to) : 0, int(low), o.pe); break;
  case FETCH_AND_32: *result = nvshmem_uint_atomic_fetch_and(half, low, o.pe); break;
  case OR_32: nvshmem_uint32_atomic_or(half, low, o.pe); break;
  case FETCH_32: *result = (uint32_t)nvshmem_int_atomic_fetch((int *)half, o.pe); break;
  default: break;
  }
}

__global__ void play(const op *ops, int count, shared s) {
  for (int i = 0; i < count; ++i) {
    const op &o = ops[i];
    if (o.scope == 0 ? threadIdx.x == 0 : o.scope == 1 ? threadIdx.x < 32 : true) perform(o, i, s);
    __syncthreads();
  }
  nvshmemx_barrier_all_block();
}

// SplitMix64.
struct numbers {
  uint64_t x;
  uint64_t next() {
    uint64_t z = (x += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  unsigned below(unsigned n) { return unsigned(next() % n); }
};

static std::vector<op> draw(uint64_t seed, int round, int origin, int pes) {
  numbers r{seed * 1000003 + round * 1009 + origin};
  std::vector<op> ops(OPS);
  for (op &o : ops) {
    static const unsigned lengths[] = {0, 1, 3, 4, 8, 16, 40, 63, 256, 1000, 2040};
    o.kind = int(r.below(KINDS)), o.scope = int(r.below(SCOPES)), o.pe = int(r.below(unsigned(pes)));
    o.bytes = lengths[r.below(11)], o.value = r.next();
    // Typed ones are aligned to 8.
    unsigned grain = o.kind == PUT || o.kind == PUT_NBI || o.kind == GET || o.kind == GET_NBI || o.kind == P_CHAR ? 1 : 8;
    o.to = r.below(2000) / grain * grain, o.from = r.below(2000) / grain * grain, o.word = r.below(WORDS);
    if (o.kind == P_CHAR) o.bytes = 1;
    // What is called in one scope alone.
    if (o.kind == PUT || (o.kind >= P_CHAR && o.kind <= G_DOUBLE) || (o.kind >= SIGNAL_SET && o.kind < IPUT_FLOAT) || o.kind == IPUT_128) o.scope = 0;
    if (o.kind == PUT_FLOAT || o.kind == GET_SHORT || o.kind == IPUT_64) o.scope = 1;
    if (o.kind == PUT_64 || o.kind == GET_NBI || o.kind == PUT_SIGNAL_NBI || o.kind == IGET_SHORT) o.scope = 2;
  }
  return ops;
}

struct model {
  std::vector<unsigned char> area, source, got;
  std::vector<uint64_t> counts, words;
  std::vector<uint32_t> shorts, halves;
  explicit model(int pes)
      : area(size_t(pes) * PART), source(PART), got(GOT), counts(WORDS), words(size_t(pes) * WORDS), shorts(WORDS), halves(size_t(pes) * WORDS) {}
};

static void copy_strided(unsigned char *to, const unsigned char *from, const op &o, size_t bytes) {
  for (size_t i = 0; i < elements(o, bytes); ++i) memcpy(to + i * to_stride(o) * bytes, from + i * from_stride(o) * bytes, bytes);
}

// Applies an operation of `origin`; gives its result.
static uint64_t apply(std::vector<model> &all, int origin, const op &o, int i) {
  model &there = all[size_t(o.pe)], &mine = all[size_t(origin)];
  unsigned char *to = &there.area[size_t(origin) * PART + o.to], *from = &mine.source[o.from];
  uint64_t &word = there.words[size_t(origin) * WORDS + o.word], before = word, bits = 0;
  uint32_t &half = there.halves[size_t(origin) * WORDS + o.word], half_before = half, low = uint32_t(o.value);
  unsigned char *got = &mine.got[size_t(place(o, i))];
  switch (o.kind) {
  case PUT: case PUT_NBI: memcpy(to, from, o.bytes); break;
  case PUT_FLOAT: memcpy(to, from, o.bytes / 4 * 4); break;
  case PUT_64: memcpy(to, from, o.bytes / 8 * 8); break;
  case GET: case GET_NBI: memcpy(&mine.got[size_t(place(o, i))], &there.source[o.from], o.bytes); break;
  case GET_SHORT: memcpy(&mine.got[size_t(place(o, i))], &there.source[o.from], o.bytes / 2 * 2); break;
  case P_CHAR: memcpy(to, &o.value, 1); break;
  case P_INT: memcpy(to, &o.value, 4); break;
  case P_DOUBLE: memcpy(to, &o.value, 8); break;
  case G_SHORT: memcpy(&bits, &there.source[o.from], 2); return bits;
  case G_INT: memcpy(&bits, &there.source[o.from], 4); return bits;
  case G_DOUBLE: memcpy(&bits, &there.source[o.from], 8); return bits;
  case PUT_SIGNAL: memcpy(to, from, o.bytes); there.counts[o.word] += o.value; break;
  case PUT_SIGNAL_NBI: memcpy(to, from, o.bytes / 8 * 8); word = o.value; break;
  case SIGNAL_SET: word = o.value; break;
  case ADD: there.counts[o.word] += o.value; break;
  case FETCH_INC: ++word; return before;
  case SWAP: word = o.value; return before;
  case COMPARE_SWAP: if (word == (o.from & 1 ? o.to : 0)) word = o.value; return before;
  case OR: word |= o.value; return before;
  case XOR: word ^= o.value; break;
  case FETCH: return before;
  case ADD_32: there.shorts[o.word] += low; break;
  case FETCH_ADD_32: half += low; return half_before;
  case INC_32: ++half; break;
  case SWAP_32: half = low; return half_before;
  case COMPARE_SWAP_32: if (half == (o.from & 1 ? o.to : 0)) half = low; return half_before;
  case FETCH_AND_32: half &= low; return half_before;
  case OR_32: half |= low; break;
  case FETCH_32: return half_before;
  case IPUT_FLOAT: copy_strided(to, from, o, 4); break;
  case IPUT_64: copy_strided(to, from, o, 8); break;
  case IPUT_128: copy_strided(to, from, o, 16); break;
  case IGET_INT: copy_strided(got, &there.source[o.from], o, 4); break;
  case IGET_SHORT: copy_strided(got, &there.source[o.from], o, 2); break;
  default: break;
  }
  return 0;
}

#define CUDA(call) do { cudaError_t e = (call); if (e != cudaSuccess) { printf("%s: %s\n", #call, cudaGetErrorString(e)); exit(1); } } while (0)

template <class T> static std::vector<T> copied(const T *from, size_t n) {
  std::vector<T> v(n);
  CUDA(cudaMemcpy(v.data(), from, n * sizeof(T), cudaMemcpyDeviceToHost));
  return v;
}

static int differs(const char *what, int round, const void *a, const void *b, size_t bytes) {
  const unsigned char *x = (const unsigned char *)a, *y = (const unsigned char *)b;
  for (size_t i = 0; i < bytes; ++i)
    if (x[i] != y[i]) return printf("round %d: %s differs at byte %zu: %d, not %d\n", round, what, i, x[i], y[i]);
  return 0;
}

int main(int argc, char **argv) {
  int rounds = argc > 1 ? atoi(argv[1]) : 5;
  uint64_t seed = argc > 2 ? strtoull(argv[2], nullptr, 0) : 1;
  nvshmem_init();
  int me = nvshmem_my_pe(), pes = nvshmem_n_pes(), wrong = 0;
  shared s;
  s.area = (unsigned char *)nvshmem_calloc(size_t(pes), PART);
  s.source = (unsigned char *)nvshmem_malloc(PART);
  s.got = (unsigned char *)nvshmem_calloc(1, GOT);
  s.counts = (uint64_t *)nvshmem_calloc(WORDS, 8);
  s.words = (uint64_t *)nvshmem_calloc(size_t(pes) * WORDS, 8);
  s.shorts = (uint32_t *)nvshmem_calloc(WORDS, 4);
  s.halves = (uint32_t *)nvshmem_calloc(size_t(pes) * WORDS, 4);
  op *ops;
  CUDA(cudaMalloc(&s.results, OPS * 8));
  CUDA(cudaMalloc(&ops, OPS * sizeof(op)));
  std::vector<model> all((size_t)pes, model{pes});
  for (int round = 0; round < rounds && !wrong; ++round) {
    for (int pe = 0; pe < pes; ++pe) {
      numbers r{seed + uint64_t(round) * 31 + uint64_t(pe) * 17};
      for (unsigned char &b : all[size_t(pe)].source) b = (unsigned char)r.next();
    }
    std::vector<op> mine = draw(seed, round, me, pes);
    CUDA(cudaMemcpy(s.source, all[size_t(me)].source.data(), PART, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(ops, mine.data(), OPS * sizeof(op), cudaMemcpyHostToDevice));
    CUDA(cudaMemset(s.results, 0, OPS * 8));
    CUDA(cudaDeviceSynchronize());
    nvshmem_barrier_all();
    play<<<1, THREADS>>>(ops, OPS, s);
    CUDA(cudaDeviceSynchronize());
    std::vector<uint64_t> results(OPS);
    for (int pe = 0; pe < pes; ++pe) {
      std::vector<op> theirs = draw(seed, round, pe, pes);
      for (int i = 0; i < OPS; ++i) {
        uint64_t result = apply(all, pe, theirs[size_t(i)], i);
        if (pe == me) results[size_t(i)] = result;
      }
    }
    const model &m = all[size_t(me)];
    wrong |= differs("the area", round, copied(s.area, m.area.size()).data(), m.area.data(), m.area.size());
    wrong |= differs("what was got", round, copied(s.got, GOT).data(), m.got.data(), GOT);
    wrong |= differs("a shared word", round, copied(s.counts, WORDS).data(), m.counts.data(), WORDS * 8);
    wrong |= differs("a word", round, copied(s.words, m.words.size()).data(), m.words.data(), m.words.size() * 8);
    wrong |= differs("a shared word of 32 bits", round, copied(s.shorts, WORDS).data(), m.shorts.data(), WORDS * 4);
    wrong |= differs("a word of 32 bits", round, copied(s.halves, m.halves.size()).data(), m.halves.data(), m.halves.size() * 4);
    wrong |= differs("a result", round, copied(s.results, OPS).data(), results.data(), OPS * 8);
  }
  printf("PE %d of %d: %d rounds of %d operations: %s\n", me, pes, rounds, OPS, wrong ? "WRONG" : "as the model");
  nvshmem_finalize();
  return wrong ? 1 : 0;
}
