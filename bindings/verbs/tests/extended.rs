//! Extended queue pairs and completion queues by a program in C (`extended.c`), linked with the
//! library.

use std::path::Path;
use std::process::Command;

#[test]
fn extended_calls_post_all_or_none_and_threads_share_a_queue() {
    let program = std::env::current_exe().expect("this test");
    // The library lies beside the folder of the tests.
    let built = program
        .ancestors()
        .find(|f| f.join("libringbell_verbs.so").is_file())
        .expect("cargo builds the library with its tests");
    let folder = std::env::temp_dir().join(format!("ringbell-extended-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a new folder");
    let compiled = folder.join("extended");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/extended.c");
    let include = ["-include", "infiniband/verbs.h", "-fsyntax-only"];
    let has_header = Command::new("cc")
        .args(include)
        .args(["-x", "c", "/dev/null"])
        .output()
        .is_ok_and(|o| o.status.success());
    if !has_header {
        std::fs::remove_dir_all(&folder).expect("removed");
        println!(
            "skipped: no cc, or no infiniband/verbs.h. Debian: apt-get install gcc libibverbs-dev"
        );
        return;
    }
    let cc = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-O1", "-pthread"])
        .arg(&source)
        .arg(format!("-L{}", built.display()))
        .arg("-lringbell_verbs")
        .arg(format!("-Wl,-rpath,{}", built.display()))
        .arg("-o")
        .arg(&compiled)
        .output()
        .expect("cc");
    let said = String::from_utf8_lossy(&cc.stderr);
    assert!(cc.status.success(), "{said}");
    // Every wait of the program has a deadline.
    let run = Command::new(&compiled).output().expect("it starts");
    std::fs::remove_dir_all(&folder).expect("removed");
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{said}");
}
