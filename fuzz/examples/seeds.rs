//! Writes what the fuzzers begin with to the folder that is named.

fn main() -> std::io::Result<()> {
    let folder = std::path::PathBuf::from(std::env::args().nth(1).unwrap_or("fuzz/corpus".into()));
    for (name, written) in forebay_fuzz::seeds() {
        let folder = folder.join(name.replace(' ', "_"));
        std::fs::create_dir_all(&folder)?;
        for (which, bytes) in ["older", "newer"].iter().zip(written) {
            std::fs::write(folder.join(which), bytes)?;
        }
    }
    Ok(())
}
