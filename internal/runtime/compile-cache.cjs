"use strict";
// Loaded before an adapter: its modules' bytecode lies beside it since its installation.
const { join } = require("node:path");
require("node:module").enableCompileCache(join(__dirname, "compile-cache"));
