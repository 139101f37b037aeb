//! Nothing but the test `seeds`.
