//! `RINGBELL_DEBUG`: what the NIC does, and why, on standard error. Off by default.

use anyhow::Result;
use tracing_subscriber::filter::LevelFilter;

use super::{Exit, Problem};

/// Starts the printing of events when the environment asks for it.
pub(crate) fn start() -> Result<()> {
    let Ok(text) = std::env::var("RINGBELL_DEBUG") else {
        return Ok(());
    };
    let level = level(&text)?;
    if level != LevelFilter::OFF {
        tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(std::io::stderr)
            .with_ansi(false)
            // It would say so on standard error, which is what has failed.
            .log_internal_errors(false)
            .init();
    }
    Ok(())
}

fn level(text: &str) -> Result<LevelFilter> {
    Ok(match text.to_ascii_uppercase().as_str() {
        "" | "0" | "OFF" => LevelFilter::OFF,
        "WARN" => LevelFilter::WARN,
        "1" | "INFO" => LevelFilter::INFO,
        "DEBUG" => LevelFilter::DEBUG,
        "TRACE" => LevelFilter::TRACE,
        _ => {
            return Err(Problem::new(
                Exit::Usage,
                format!("RINGBELL_DEBUG={text} is not a level"),
                "set it to INFO, DEBUG or TRACE, or unset it",
            )
            .into())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels() {
        assert_eq!(level("info").ok(), Some(LevelFilter::INFO));
        assert_eq!(level("").ok(), Some(LevelFilter::OFF));
        assert!(level("LOUD").is_err());
    }
}
