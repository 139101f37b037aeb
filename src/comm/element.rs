//! [`Element`]: Rust types that collectives reduce and move.

use ringbell_nic_abi::DataType;

mod sealed {
    pub trait Sealed {}
}

/// A type of elements that the NIC supports.
pub trait Element: Copy + PartialEq + Send + Sync + 'static + sealed::Sealed {
    /// Its code in descriptors.
    const DTYPE: DataType;
}

macro_rules! element {
    ($($ty:ty => $code:ident),+ $(,)?) => {
        $(
            impl sealed::Sealed for $ty {}
            impl Element for $ty {
                const DTYPE: DataType = DataType::$code;
            }
        )+
    };
}
element!(
    half::f16 => F16,
    half::bf16 => Bf16,
    f32 => F32,
    f64 => F64,
    i8 => I8,
    i16 => I16,
    i32 => I32,
    i64 => I64,
    u8 => U8,
    u16 => U16,
    u32 => U32,
    u64 => U64,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_agree_with_the_contract() {
        fn same<T: Element>() {
            assert_eq!(size_of::<T>() as u64, T::DTYPE.bytes());
        }
        same::<half::f16>();
        same::<half::bf16>();
        same::<f32>();
        same::<f64>();
        same::<i8>();
        same::<i16>();
        same::<i32>();
        same::<i64>();
        same::<u8>();
        same::<u16>();
        same::<u32>();
        same::<u64>();
    }
}
