package testworld

import "path"

// Shop is a small project whose tests fail because of one wrong operator in cart.sh. It needs bash and nothing
// else, so its tests run in a bare machine without a network.
var Shop = Files{
	"README.md": "# Shop\n\nThe cart of a small shop. Run the tests with ./run-tests.sh.\n",
	"cart.sh": `# The cart: amounts are in cents.

# line_total PRICE QUANTITY
line_total() {
    echo $(($1 + $2))
}

# with_discount AMOUNT PERCENT
with_discount() {
    echo $(($1 - $1 * $2 / 100))
}
`,
	"run-tests.sh": `#!/bin/bash
# Checks the functions of cart.sh, and says how many checks passed and failed.
cd "$(dirname "$0")" || exit 2
. ./cart.sh
passed=0 failed=0
check() {
    if [ "$2" = "$3" ]; then
        echo "ok    $1"
        passed=$((passed + 1))
    else
        echo "FAIL  $1: want $2, got $3"
        failed=$((failed + 1))
    fi
}
echo "running the cart's tests"
check "one apple at 150" 150 "$(line_total 150 1)"
check "three apples at 150" 450 "$(line_total 150 3)"
check "no apple at 150" 0 "$(line_total 150 0)"
check "ten percent off 2000" 1800 "$(with_discount 2000 10)"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
`,
}

// What the project's test run ends with, before and after the repair.
const (
	ShopFails  = "1 passed, 3 failed"
	ShopPasses = "4 passed, 0 failed"
)

// RepairShop is a script for claude at work in a checkout of Shop: it reads cart.sh, runs the tests, sees them
// fail, mends the operator, runs them again, and says so. Each reply insists on the result before it.
func RepairShop(checkout string) []Reply {
	cart := path.Join(checkout, "cart.sh")
	run := Input{"command": "cd " + checkout + " && ./run-tests.sh", "description": "Run the project's tests"}
	return []Reply{
		{
			Think("The cart's tests are said to fail. I look at the code first."),
			Say("I'll look at the cart ", "before I run its tests."),
			Call("Read", Input{"file_path": cart}),
		},
		{ToolSaid("line_total"), Say("Now the tests."), Call("Bash", run)},
		{
			ToolSaid(ShopFails),
			Say("`line_total` adds where it should multiply."),
			Call("Edit", Input{"file_path": cart, "old_string": "echo $(($1 + $2))", "new_string": "echo $(($1 * $2))"}),
		},
		{ToolSaid("updated"), Call("Bash", run)},
		{ToolSaid(ShopPasses), Say("The tests pass: ", "`line_total` multiplies the price by the quantity now.")},
	}
}
