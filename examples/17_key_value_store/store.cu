// A key-value store in the memory of all ranks, whose kernels look up keys by READs and change them by compare and swap.
//
// A bucket has 64 bytes: a version, a key, a value and a check of all three. Version 0 is an empty bucket, an odd one is being
// written. A key's hash names its rank and its first bucket; a full bucket leads to the next one.
//
// GET: `gpu_get` of a bucket, in which nothing at its rank but the NIC takes part. A read that meets a write is torn: then the version is odd or
// the check is wrong, and the bucket is read again.
// PUT: a compare and swap of the version locks the bucket, a put writes key, value and check, and another compare and swap
// opens it. All threads share the queue of the communicator: so none holds a slot of it while it waits for another, which it would with the put
// and the last swap under way together. On its own rank a kernel does the same by its own atomics and stores, beside the NIC that reads: there
// torn reads are torn inside the bucket.
//
// A writer that ends in between leaves its bucket locked: readers of it give up after MOST_READS. Keys are never removed.
#include "ringbell_collective.cuh"
#include "ringbell_one_sided.cuh"

constexpr int VALUE_WORDS = 5;
constexpr rb_u32 MOST_PROBES = 16, MOST_READS = 1000000, PAUSE_NS = 20000;

struct bucket {
  rb_u64 version;
  rb_u64 key;
  rb_u64 value[VALUE_WORDS];
  rb_u64 check;
};

// What a thread has done. `wrong`: values that no PUT has written.
struct report {
  gpu_result end;
  rb_u64 gets, puts, repeated, wrong;
};

__device__ rb_u64 mix(rb_u64 x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__device__ rb_u64 check_of(const bucket &b) {
  rb_u64 h = mix(b.version + 1) ^ mix(b.key + 2);
  for (int i = 0; i < VALUE_WORDS; ++i) h = mix(h ^ b.value[i]);
  return h;
}

// The values of these tests: a number, and words that follow from it and the key.
__device__ rb_u64 value_word(rb_u64 key, rb_u64 number, int i) { return i ? mix(number ^ mix(key + i)) : number; }

// A thread's view of the store.
struct client {
  const rb_comm &comm;
  rb_u32 window, buckets;
  bucket *own;     // this rank's part
  bucket *scratch; // registered memory of the thread
  report out;

  // Bucket number `probe` of a key.
  __device__ rb_u32 rank_of(rb_u64 key) const { return rb_u32(mix(key) % comm.size); }
  __device__ rb_u64 slot_of(rb_u64 key, rb_u32 probe) const { return ((mix(key) >> 32) + probe) % buckets; }
  __device__ gpu_remote at(rb_u64 key, rb_u32 probe) const {
    return gpu_window(comm, window, rank_of(key), slot_of(key, probe) * sizeof(bucket));
  }

  // Reads a bucket until it is whole.
  __device__ gpu_result read(rb_u64 key, rb_u32 probe, bucket *into) {
    for (rb_u32 i = 0; i < MOST_READS; ++i) {
      gpu_result r = gpu_get(comm.queue, scratch, at(key, probe), sizeof(bucket));
      if (!r.ok()) return r;
      *into = *scratch;
      if (into->version == 0 || (into->version % 2 == 0 && into->check == check_of(*into))) return r;
      ++out.repeated;
      if (i > 10) __nanosleep(PAUSE_NS); /* its writer waits for something itself */
    }
    return gpu_result{RB_STATUS_TIMED_OUT, 0, 0, key};
  }

  // Finds the bucket of a key, or the one that it would get: then its version is 0.
  __device__ gpu_result find(rb_u64 key, bucket *found, rb_u32 *probe) {
    for (*probe = 0; *probe < MOST_PROBES; ++*probe) {
      gpu_result r = read(key, *probe, found);
      if (!r.ok() || found->version == 0 || found->key == key) return r;
    }
    return gpu_result{RB_STATUS_NO_RESOURCES, 0, 0, key};
  }

  __device__ gpu_result get(rb_u64 key) {
    bucket b;
    rb_u32 probe;
    gpu_result r = find(key, &b, &probe);
    ++out.gets;
    for (int i = 0; r.ok() && b.version && i < VALUE_WORDS; ++i) out.wrong += b.value[i] != value_word(key, b.value[0], i);
    return r;
  }

  __device__ gpu_result put(rb_u64 key, rb_u64 number) {
    for (rb_u32 i = 0; i < MOST_READS; ++i) {
      bucket b;
      rb_u32 probe;
      gpu_result r = find(key, &b, &probe);
      if (!r.ok()) return r;
      rb_u64 version = b.version;
      b.version += 2;
      b.key = key;
      for (int w = 0; w < VALUE_WORDS; ++w) b.value[w] = value_word(key, number, w);
      b.check = check_of(b);
      bool here = rank_of(key) == comm.rank;
      bool written = here ? write_here(own + slot_of(key, probe), version, b) : write_there(at(key, probe), version, b, &r);
      if (!r.ok()) return r;
      if (written) {
        ++out.puts;
        return r;
      }
      // Another writer was faster, and the bucket may have another key now.
    }
    return gpu_result{RB_STATUS_TIMED_OUT, 0, 0, key};
  }

  // Replaces a bucket that has still this version.
  __device__ bool write_here(bucket *b, rb_u64 version, const bucket &next) {
    unsigned long long *lock = reinterpret_cast<unsigned long long *>(&b->version);
    if (atomicCAS_system(lock, version, version + 1) != version) return false;
    __threadfence_system();
    volatile rb_u64 *to = reinterpret_cast<volatile rb_u64 *>(b);
    const rb_u64 *from = reinterpret_cast<const rb_u64 *>(&next);
    for (unsigned i = 1; i < sizeof(bucket) / 8; ++i) to[i] = from[i];
    __threadfence_system();
    atomicExch_system(lock, version + 2);
    return true;
  }

  __device__ bool write_there(const gpu_remote &to, rb_u64 version, const bucket &next, gpu_result *r) {
    *r = gpu_atomic_cas(comm.queue, to, version, version + 1);
    if (!r->ok() || r->detail != version) return false;
    *scratch = next;
    *r = gpu_put(comm.queue, to + 8, &scratch->key, sizeof(bucket) - 8);
    if (r->ok()) *r = gpu_atomic_cas(comm.queue, to, version + 1, version + 2);
    return r->ok();
  }
};

// Every thread reads and writes keys 1 to `keys` in turns of its own.
extern "C" __global__ void use_store(rb_comm c, rb_u32 window, bucket *own, bucket *scratch, rb_u32 buckets, rb_u32 keys, rb_u32 steps, report *out) {
  rb_u32 me = blockIdx.x * blockDim.x + threadIdx.x;
  client s{c, window, buckets, own, scratch + me, {}};
  rb_u64 who = rb_u64(c.rank) << 32 | me, random = mix(who + 1);
  for (rb_u32 i = 0; i < steps && s.out.end.ok(); ++i) {
    random = mix(random + i);
    rb_u64 key = 1 + random % keys;
    s.out.end = random >> 62 ? s.get(key) : s.put(key, mix(who << 16 | i));
  }
  out[me] = s.out;
}
