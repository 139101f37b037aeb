//! Reduction of what the ranks have sent, element by element.

/// Bytes of an element of this `ncclDataType_t`; `None`: a type that the mock does not sum.
pub(crate) fn size(dtype: i32) -> Option<usize> {
    match dtype {
        0 | 1 => Some(1),
        2 | 3 | 7 => Some(4),
        4 | 5 | 8 => Some(8),
        _ => None,
    }
}

macro_rules! fold {
    ($t:ty, $into:expr, $from:expr, $op:expr, $add:expr, $mul:expr) => {{
        const N: usize = std::mem::size_of::<$t>();
        for (a, b) in $into.chunks_exact_mut(N).zip($from.chunks_exact(N)) {
            let x = <$t>::from_ne_bytes((&*a).try_into().expect("an element"));
            let y = <$t>::from_ne_bytes(b.try_into().expect("an element"));
            let z = match $op {
                0 => $add(x, y),
                1 => $mul(x, y),
                2 if y > x => y,
                3 if y < x => y,
                _ => x,
            };
            a.copy_from_slice(&z.to_ne_bytes());
        }
    }};
}

/// `into` op= `from`. Type and reduction by NCCL's numbers.
pub(crate) fn reduce(dtype: i32, op: i32, into: &mut [u8], from: &[u8]) {
    macro_rules! whole {
        ($t:ty) => {
            fold!($t, into, from, op, <$t>::wrapping_add, <$t>::wrapping_mul)
        };
    }
    macro_rules! real {
        ($t:ty) => {
            fold!($t, into, from, op, |x: $t, y: $t| x + y, |x: $t, y: $t| x
                * y)
        };
    }
    match dtype {
        0 => whole!(i8),
        1 => whole!(u8),
        2 => whole!(i32),
        3 => whole!(u32),
        4 => whole!(i64),
        5 => whole!(u64),
        7 => real!(f32),
        _ => real!(f64),
    }
}
