//! Compiled C++, kept between builds: a file whose text and headers are those of an earlier build
//! is not compiled again.
//!
//! Cargo runs the build script once for each set of features, and `cargo xtask hw mutate` once for
//! each fault. Most files are the same.
#![allow(clippy::disallowed_methods)] // Notes when an object was used.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

/// Bytes of objects that are kept: some twenty builds of all blocks.
const MOST: u64 = 128 << 20;

/// The folder of objects, of one profile.
pub(crate) struct Objects {
    kept: PathBuf,
    /// The build's own copies.
    out: PathBuf,
    /// What all objects depend on.
    tools: u64,
}

impl Objects {
    /// Objects compiled with Verilator's headers in `include`.
    pub(crate) fn new(out: &Path, include: &Path) -> io::Result<Objects> {
        // OUT_DIR is PROFILE/build/PACKAGE/out.
        let profile = out.ancestors().nth(3).unwrap_or(out);
        let kept = profile.join("verilated");
        let own = out.join("objects");
        fs::create_dir_all(&kept)?;
        fs::create_dir_all(&own)?;
        let mut hash = DefaultHasher::new();
        headers(include, &mut hash)?;
        headers(&include.join("vltstd"), &mut hash)?;
        Ok(Objects {
            kept,
            out: own,
            tools: hash.finish(),
        })
    }

    /// Compiles files with the headers of their folders, and returns their objects. `cpp` has
    /// neither files nor these folders.
    pub(crate) fn compile(&self, cpp: &cc::Build, files: &[PathBuf]) -> io::Result<Vec<PathBuf>> {
        let tool = cpp.get_compiler();
        let version = tool.to_command().arg("--version").output()?.stdout;
        let mut common = DefaultHasher::new();
        (self.tools, version, tool.path(), tool.args()).hash(&mut common);
        let (mut objects, mut missing) = (Vec::new(), Vec::new());
        let mut cpp = cpp.clone();
        for file in files {
            let folder = file.parent().unwrap_or(file);
            let mut hash = common.clone();
            headers(folder, &mut hash)?;
            fs::read(file)?.hash(&mut hash);
            let name = format!("{:016x}.o", hash.finish());
            let (kept, object) = (self.kept.join(&name), self.out.join(name));
            // Another build may remove it at any time.
            if fs::copy(&kept, &object).is_ok() {
                let _ = fs::File::open(kept).and_then(|f| f.set_modified(SystemTime::now()));
            } else {
                cpp.include(folder);
                missing.push((fs::metadata(file)?.len(), file, kept, object.clone()));
            }
            objects.push(object);
        }
        // The longest first, so that no processor waits for one of them at the end.
        missing.sort_by_key(|(length, ..)| std::cmp::Reverse(*length));
        cpp.files(missing.iter().map(|(_, file, ..)| file));
        for (made, (.., kept, object)) in cpp.compile_intermediates().iter().zip(&missing) {
            fs::rename(made, object)?;
            let unfinished = kept.with_extension(std::process::id().to_string());
            fs::copy(object, &unfinished)?;
            fs::rename(unfinished, kept)?;
        }
        Ok(objects)
    }

    /// Removes what no build has used for the longest time.
    pub(crate) fn tidy(&self) -> io::Result<()> {
        let mut all = Vec::new();
        for file in fs::read_dir(&self.kept)? {
            let file = file?;
            // Another build may have removed it.
            if let Ok(about) = file.metadata() {
                all.push((about.modified()?, about.len(), file.path()));
            }
        }
        all.sort_by_key(|(used, ..)| std::cmp::Reverse(*used));
        let mut bytes = 0;
        for (_, length, file) in all {
            bytes += length;
            if bytes > MOST {
                let _ = fs::remove_file(file);
            }
        }
        // The archive has them.
        fs::remove_dir_all(&self.out)
    }
}

/// The headers of a folder, in the order of their names.
fn headers(folder: &Path, hash: &mut DefaultHasher) -> io::Result<()> {
    let files = fs::read_dir(folder)?.map(|file| Ok(file?.path()));
    let mut files = files.collect::<io::Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|e| e == "h"));
    files.sort();
    for file in files {
        (file.file_name(), fs::read(&file)?).hash(hash);
    }
    Ok(())
}
