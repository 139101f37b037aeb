/* Checks of the C programs of this folder. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <string.h>

#include "ringbell.h"

static int failed;

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            __atomic_add_fetch(&failed, 1, __ATOMIC_RELAXED);                                 \
            fprintf(stderr, "line %d: %s\n  last error: %s\n", __LINE__, #condition, rb_last_error()); \
        }                                                                                      \
    } while (0)
/* The call fails with `code`, and the text names the call and holds `word`. */
#define FAILS(call, code, word)                                                        \
    do {                                                                               \
        rb_result r_ = (call);                                                         \
        if (r_ != (code) || !strstr(rb_last_error(), word) ||                          \
            strncmp(rb_last_error(), #call, strcspn(#call, "("))) {                    \
            __atomic_add_fetch(&failed, 1, __ATOMIC_RELAXED);                                 \
            fprintf(stderr, "line %d: %s gave %d, %s\n", __LINE__, #call, r_, rb_last_error()); \
        }                                                                              \
    } while (0)

#endif /* CHECK_H */
