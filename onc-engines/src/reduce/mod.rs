//! Element-wise reductions and conversions over memory that others may write.
//!
//! Operands are raw pointers, because they point into GPU memory or into a peer's: never a `&[u8]`.
