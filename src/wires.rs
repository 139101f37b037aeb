//! What a job's launcher says of the memory and the wires between its ranks.
//!
//! Wires of port `mesh` are written `0=udp:BIND,PEER;1=mem:FILE:SIDE`.

use std::path::Path;
use std::sync::Arc;

use ringbell_nic_core::port::mem::MemSwitch;

use crate::builder::NicBuilder;
use crate::spec::SpecError;
use crate::OpenError;

/// Gives the builder the wires of the text, by the node's ports.
pub(crate) fn apply(mut builder: NicBuilder, text: &str) -> NicBuilder {
    for part in text.split(';').filter(|p| !p.is_empty()) {
        let wire = part.split_once('=').and_then(|(number, carrier)| {
            let number: u8 = number.parse().ok()?;
            Some((number, carrier))
        });
        let Some((number, carrier)) = wire else {
            let why =
                format!("`{part}` is no wire; write PORT=udp:BIND,PEER or PORT=mem:FILE:SIDE");
            builder.wrong.get_or_insert(OpenError::Setting {
                setting: "RINGBELL_WIRES",
                why: SpecError::new(why),
            });
            return builder;
        };
        let of_switch = carrier.strip_prefix("mem:");
        let of_switch = of_switch.and_then(|rest| rest.rsplit_once(':'));
        builder = match of_switch.map(|(file, side)| (file, side.parse())) {
            Some((file, Ok(side))) => match attach(file.as_ref()) {
                Ok(switch) => builder.wire_switch(number, switch, side),
                Err(why) => {
                    builder.wrong.get_or_insert(why);
                    builder
                }
            },
            _ => builder.wire(number, carrier),
        };
    }
    builder
}

/// The switch of a launcher's file.
pub(crate) fn attach(path: &Path) -> Result<Arc<MemSwitch>, OpenError> {
    let failed = |why: String| OpenError::JobSwitch {
        path: path.into(),
        why,
    };
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|e| failed(e.to_string()))?;
    let switch = MemSwitch::attach(file.into()).map_err(|e| failed(e.to_string()))?;
    Ok(Arc::new(switch))
}
