// Recursion, calls by address, structures by value, memory of the stack, as clang compiles them:
// clang-19 -x cuda --cuda-device-only -S -nocudainc -nocudalib --cuda-gpu-arch=sm_90 --cuda-feature=+ptx83 -O1 calls.cu -o calls.ptx
typedef unsigned u32;
#define DEVICE __attribute__((device))

struct Six {
    u32 v[6];
};
struct Shape {
    DEVICE virtual u32 area(u32 k) const = 0;
};
struct Square : Shape {
    u32 side;
    DEVICE u32 area(u32 k) const override { return side * side + k; }
};
struct Line : Shape {
    DEVICE u32 area(u32 k) const override { return k; }
};

DEVICE u32 times7(u32 a) { return a * 7; }
DEVICE u32 flip(u32 a) { return a ^ 5; }

__attribute__((noinline)) DEVICE u32 tree(u32 n, u32 (*leaf)(u32)) {
    return n < 2 ? leaf(n) : tree(n - 1, leaf) * 3 + tree(n - 2, leaf);
}

__attribute__((noinline)) DEVICE Six changed(Six s, u32 k) {
    s.v[k % 6] += k;
    return s;
}

__attribute__((noinline)) DEVICE u32 area(const Shape *s, u32 k) { return s->area(k); }

extern "C" __attribute__((global)) void k(u32 *p) {
    u32 i = __nvvm_read_ptx_sreg_tid_x(), n = p[i];
    Six s;
    for (u32 j = 0; j < 6; j++) s.v[j] = n + j;
    s = changed(s, n);
    Square square;
    square.side = n;
    Line line;
    const Shape *shape = n % 3 ? (const Shape *)&square : &line;
    p[i] = tree(n % 7, n % 2 ? times7 : flip) + s.v[n % 5] * 1000 + area(shape, n) * 100000;
}
