//! `RINGBELL_DEBUG`: log of the NIC's events on standard error. Off by default.

use tracing_subscriber::filter::LevelFilter;

/// The variable that asks for events: `INFO`, `DEBUG` or `TRACE`. Beside it or alone are words for
/// the emulated GPU: with `kernel` it says where the threads of kernels stand that only wait; with
/// `gdb` and `perf` these tools know its kernels.
pub const DEBUG_VARIABLE: &str = "RINGBELL_DEBUG";

/// The variable names no level.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{DEBUG_VARIABLE}={text} is not a level; set it to INFO, DEBUG or TRACE, to `kernel`, `gdb` or `perf`, to several of them with commas, or unset it")]
pub struct DebugLevelError {
    text: String,
}

/// Prints the library's events (of `tracing`) to standard error when the environment asks for it.
/// [`NicBuilder::open`](crate::NicBuilder::open) calls it. A program that has set a subscriber of
/// its own keeps it.
///
/// # Errors
/// [`DebugLevelError`]; then nothing is printed.
pub fn print_events() -> Result<(), DebugLevelError> {
    let text = std::env::var(DEBUG_VARIABLE).unwrap_or_default();
    let level = level(&text).ok_or(DebugLevelError { text })?;
    if level != LevelFilter::OFF {
        // An error means that there is a subscriber already.
        let _ = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(std::io::stderr)
            .with_ansi(false)
            // It would report that on standard error, which is what has failed.
            .log_internal_errors(false)
            .try_init();
    }
    Ok(())
}

fn level(text: &str) -> Option<LevelFilter> {
    let levels = text.split(',').map(|part| {
        Some(match part.trim().to_ascii_uppercase().as_str() {
            "" | "0" | "OFF" | "KERNEL" | "GDB" | "PERF" => LevelFilter::OFF,
            "WARN" => LevelFilter::WARN,
            "1" | "INFO" => LevelFilter::INFO,
            "DEBUG" => LevelFilter::DEBUG,
            "TRACE" => LevelFilter::TRACE,
            _ => return None,
        })
    });
    levels.collect::<Option<Vec<_>>>()?.into_iter().max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels() {
        assert_eq!(level("info"), Some(LevelFilter::INFO));
        assert_eq!(level(""), Some(LevelFilter::OFF));
        assert_eq!(level("LOUD"), None);
        assert_eq!(level("kernel"), Some(LevelFilter::OFF));
        assert_eq!(level("kernel,debug"), Some(LevelFilter::DEBUG));
        assert_eq!(level("gdb,perf,warn"), Some(LevelFilter::WARN));
        assert_eq!(level("kernel,LOUD"), None);
    }
}
