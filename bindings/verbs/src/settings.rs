//! Settings, which `ringbell verbs` gives by the environment.

use std::net::IpAddr;
use std::sync::OnceLock;

use ringbell_roce::verbs::ContextConfig;

/// Whether refused calls are explained on stderr.
pub(crate) fn traces() -> bool {
    static TRACES: OnceLock<bool> = OnceLock::new();
    *TRACES.get_or_init(|| std::env::var_os("RINGBELL_VERBS_TRACE").is_some())
}

fn read<T: std::str::FromStr>(name: &str) -> Result<Option<T>, String> {
    match std::env::var(name) {
        Err(_) => Ok(None),
        Ok(text) => match text.parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(format!("{name} is {text:?}, which it cannot be")),
        },
    }
}

/// How a context is opened.
pub(crate) fn config() -> Result<ContextConfig, String> {
    let mut config = ContextConfig::default();
    if let Some(address) = read::<IpAddr>("RINGBELL_VERBS_ADDR")? {
        config.address = address;
    }
    if let Some(scope) = read("RINGBELL_VERBS_SCOPE")? {
        config.scope = scope;
    }
    if let Some(port) = read("RINGBELL_VERBS_PORT")? {
        config.port = port;
    }
    if let Some(mtu) = read("RINGBELL_VERBS_MTU")? {
        config.mtu = Some(mtu);
    }
    if let Some(standard) = read::<u8>("RINGBELL_VERBS_STANDARD")? {
        if standard != 0 {
            (config.icrc, config.payload_kib, config.selective) = (true, 4, false);
        }
    }
    Ok(config)
}
