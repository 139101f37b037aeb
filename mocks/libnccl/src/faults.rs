//! Faults that a test asks for.

use std::sync::OnceLock;

/// Version that is reported unless the list says otherwise: the first that allows several ranks on
/// one GPU.
const VERSION: i32 = 23_003;

/// `RINGBELL_MOCK_NCCL`: words with commas. `AT` are bytes: operations of at least so many are
/// meant.
#[derive(Debug, Default)]
pub struct Faults {
    /// `version=N`: as `ncclGetVersion` tells it, 22809 for 2.28.9.
    pub version: i32,
    /// `init-hang`: communicators never come up.
    pub init_hang: bool,
    /// `init-error=CODE`: nor do they here.
    pub init_error: Option<i32>,
    /// `op-hang=AT`: the operation never ends.
    pub op_hang: Option<u64>,
    /// `op-error=CODE:AT`: the call fails.
    pub op_error: Option<(i32, u64)>,
    /// `async-error=CODE:AT`: the call succeeds, the operation never ends, and the communicator
    /// tells of an error.
    pub async_error: Option<(i32, u64)>,
    /// `wrong=AT`: the last rank gets a result that is wrong in its last bit.
    pub wrong: Option<u64>,
    /// `die=AT`: rank 1's process ends, as by a crash.
    pub die: Option<u64>,
    /// `destroy-hang`: communicators never go down.
    pub destroy_hang: bool,
}

impl Faults {
    fn read() -> Faults {
        let mut f = Faults {
            version: VERSION,
            ..Faults::default()
        };
        let list = std::env::var("RINGBELL_MOCK_NCCL").unwrap_or_default();
        for fault in list.split(',').filter(|s| !s.is_empty()) {
            let (name, value) = fault.split_once('=').unwrap_or((fault, ""));
            let known = match name {
                "version" => value.parse().map(|v| f.version = v).is_ok(),
                "init-hang" => {
                    f.init_hang = true;
                    true
                }
                "init-error" => set(&mut f.init_error, value.parse().ok()),
                "op-hang" => set(&mut f.op_hang, value.parse().ok()),
                "op-error" => set(&mut f.op_error, pair(value)),
                "async-error" => set(&mut f.async_error, pair(value)),
                "wrong" => set(&mut f.wrong, value.parse().ok()),
                "die" => set(&mut f.die, value.parse().ok()),
                "destroy-hang" => {
                    f.destroy_hang = true;
                    true
                }
                _ => false,
            };
            // A misspelt fault would make its test pass for nothing.
            assert!(
                known,
                "RINGBELL_MOCK_NCCL: `{fault}` is no fault of this mock"
            );
        }
        f
    }
}

fn set<T>(to: &mut Option<T>, value: Option<T>) -> bool {
    *to = value;
    to.is_some()
}

fn pair(text: &str) -> Option<(i32, u64)> {
    let (code, at) = text.split_once(':')?;
    Some((code.parse().ok()?, at.parse().ok()?))
}

/// The faults that were asked for.
pub fn faults() -> &'static Faults {
    static FAULTS: OnceLock<Faults> = OnceLock::new();
    FAULTS.get_or_init(Faults::read)
}
