//! Waits for several words, half words, and rows of a matrix.

use super::*;

over_both!(
    waits_for_several_words_name_those_that_are_there,
    half_words_are_updated_and_their_other_halves_left,
    rows_are_put_and_got_by_their_strides,
);

fn waits_for_several_words_name_those_that_are_there(via: Via) {
    let pair = pair(via);
    let (caller, waiter) = (Caller::new(&pair.client), Caller::new(&pair.server));
    // Five words, and room for five numbers of 32 bits.
    let there = pair.server.alloc_remote::<u64>(8).expect("room");
    let wait = |what, timeout_us| Call {
        local: there.va().0,
        value: 3,
        second: 2,
        word: 5,
        what,
        timeout_us,
        ..Call::default()
    };
    for scope in 0..3 {
        there.write(0, &[2, 0, 2, 0, 2]).expect("fits");
        for (what, detail) in [(WAIT_ANY, 5), (WAIT_ALL, 0), (WAIT_SOME, 0)] {
            let r = waiter.call(scope, wait(what, 20_000));
            assert_eq!((r.status(), r.detail), (Some(Status::TimedOut), detail));
        }
        let signal = |word| Call {
            word,
            value: 1,
            ..on(&pair, there.remote(), SIGNAL)
        };
        let any = std::thread::scope(|scope_| {
            let waiting = scope_.spawn(|| waiter.call(scope, wait(WAIT_ANY, TIMEOUT_US)));
            caller.call(scope, signal(4)).check("signal").expect("set");
            waiting.join().expect("no panic")
        });
        assert_eq!((any.status(), any.detail), (Some(Status::Ok), 4));
        caller.call(scope, signal(0)).check("signal").expect("set");
        let some = waiter.call(scope, wait(WAIT_SOME, TIMEOUT_US));
        assert_eq!((some.status(), some.detail), (Some(Status::Ok), 2));
        assert_eq!(there.to_vec().expect("a copy")[5], 4 << 32);
        // From word 2 on, 4 comes before 0.
        let any = waiter.call(scope, wait(WAIT_ANY, TIMEOUT_US));
        assert_eq!(any.detail, 4);
        let all = waiter.call(scope, wait(WAIT_ALL, 20_000));
        assert_eq!((all.status(), all.detail), (Some(Status::TimedOut), 1));
        there.write(1, &[9, 3, u64::MAX]).expect("fits");
        let all = waiter.call(scope, wait(WAIT_ALL, TIMEOUT_US));
        assert_eq!(all.status(), Some(Status::Ok));
        // No word: one cannot come, and all are there.
        let none = |what| Call {
            word: 0,
            ..wait(what, 20_000)
        };
        let ends = [WAIT_ANY, WAIT_ALL, WAIT_SOME].map(|w| waiter.call(scope, none(w)).status());
        let late = Some(Status::TimedOut);
        assert_eq!(ends, [late, Some(Status::Ok), late]);
    }
}

fn half_words_are_updated_and_their_other_halves_left(via: Via) {
    let pair = pair(via);
    let caller = Caller::new(&pair.client);
    let there = pair.server.alloc_remote::<u32>(8).expect("room");
    let mut model = [u32::MAX, 7, u32::MAX, 9, 0, u32::MAX, 1, 2];
    there.write(0, &model).expect("fits");
    for scope in 0..3 {
        for i in 0..8 {
            let at = there.remote().at(4 * i as u64);
            let r = caller.call(
                scope,
                Call {
                    value: 3,
                    ..on(&pair, at, ADD32)
                },
            );
            assert_eq!((r.status(), r.detail), (Some(Status::Ok), model[i].into()));
            model[i] = model[i].wrapping_add(3);
            assert_eq!(there.to_vec().expect("a copy"), model);
            // Once as expected, once not.
            for compare in [model[i], model[i]] {
                let swap = Call {
                    value: compare.into(),
                    second: (compare ^ 0x8000_0001).into(),
                    ..on(&pair, at, CAS32)
                };
                let r = caller.call(scope, swap);
                assert_eq!((r.status(), r.detail), (Some(Status::Ok), model[i].into()));
                if model[i] == compare {
                    model[i] ^= 0x8000_0001;
                }
                assert_eq!(there.to_vec().expect("a copy"), model);
            }
        }
    }
    for (at, what) in [(2, ADD32), (6, CAS32)] {
        let r = caller.call(0, on(&pair, there.remote().at(at), what));
        assert_eq!(r.status(), Some(Status::InvalidArgument));
    }
}

fn rows_are_put_and_got_by_their_strides(via: Via) {
    let pair = pair(via);
    let caller = Caller::new(&pair.client);
    let size = 400_000_u64;
    let there = pair.server.alloc_remote::<u8>(size).expect("room");
    let here = pair.client.alloc::<u8>(size).expect("room");
    let (mut far, mut near) = (vec![0; size as usize], noise(1, size as usize));
    here.write(0, &near).expect("fits");
    // More rows than the queue has slots, one row, none, and rows behind each other.
    let cases = [(3, 7, 5, 1000), (8, 24, 8, 700), (5000, 9001, 6000, 40)];
    let cases = cases.into_iter().chain([(100, 0, 0, 1), (9, 9, 9, 0)]);
    for (scope, (len, apart, step, rows)) in cases.enumerate() {
        for what in [PUT_ROWS, GET_ROWS] {
            let call = Call {
                local: here.va().0 + 16,
                len,
                value: apart,
                second: step,
                word: rows,
                ..on(&pair, there.remote().at(33), what)
            };
            let r = caller.call(scope as u32 % 3, call);
            let moved = r.check("rows").expect("in place");
            assert_eq!(moved, len * u64::from(rows));
            for row in 0..u64::from(rows) {
                let a = 33 + (row * apart) as usize..33 + (row * apart + len) as usize;
                let b = 16 + (row * step) as usize..16 + (row * step + len) as usize;
                match what {
                    PUT_ROWS => far[a].copy_from_slice(&near[b]),
                    _ => near[b].copy_from_slice(&far[a]),
                }
            }
            assert!(there.to_vec().expect("a copy") == far, "case {scope}");
            assert!(here.to_vec().expect("a copy") == near, "case {scope}");
        }
    }
    // A row that does not fit: the first failure is told.
    let call = Call {
        local: here.va().0,
        len: 8,
        value: size / 2,
        second: 8,
        word: 4,
        ..on(&pair, there.remote(), PUT_ROWS)
    };
    let r = caller.call(0, call);
    assert_eq!(r.status(), Some(Status::OutOfBounds));
}
