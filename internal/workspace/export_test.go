package workspace

// PIPScript is what the packages step runs for pip.
const PIPScript = pipScript
