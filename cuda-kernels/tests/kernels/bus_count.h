/* What a kernel's accesses would cost on a GPU behind PCIe, counted on the emulated one: see bus_traffic.rs.
 * Included before the device header, whose accesses then count here. */
#ifndef RB_BUS_COUNT_H
#define RB_BUS_COUNT_H

namespace bus_count {

enum bus_access { READ, LOOK, STORE, FENCE, DEVICE };

/* Of one thread. */
struct bus_traffic {
  unsigned read;  /* loads from the host's memory: a round trip each */
  unsigned look;  /* 16-byte loads of completion lines: a round trip each, and the last one is needed */
  unsigned store; /* stores to the host's memory, without a wait */
  unsigned fence; /* fences for the whole system */
  unsigned stall; /* those that wait for stores on their way to the host, about a round trip each */
  unsigned device; /* accesses to the GPU's own memory that are waited for */
  unsigned on_the_way;
};

inline thread_local bus_traffic bus{};

inline void count_bus(bus_access what) {
  switch (what) {
  case READ: ++bus.read; break;
  case LOOK: ++bus.look, bus.on_the_way = 0; break; /* an answer has come: what was stored before it has arrived */
  case STORE: ++bus.store, ++bus.on_the_way; break;
  case FENCE: ++bus.fence, bus.stall += bus.on_the_way != 0, bus.on_the_way = 0; break;
  case DEVICE: ++bus.device; break;
  }
}

} // namespace bus_count

#define RB_COUNT_BUS 1
#define RB_BUS(what) ::bus_count::count_bus(::bus_count::what)

#endif
