//! Refusals of descriptors.

use ringbell_nic_abi::Status;

/// Why a descriptor is refused: status and detail.
pub(super) type Refusal = (Status, u64);
/// How a descriptor ends that is executed at once: bytes and detail.
pub(super) type Answer = Result<(u64, u64), Refusal>;

/// Whether a status reports memory that may not be used.
pub(super) fn is_fault(status: Status) -> bool {
    matches!(
        status,
        Status::NotRegistered
            | Status::OutOfBounds
            | Status::AccessDenied
            | Status::NoTranslation
            | Status::RegionFreed
    )
}
