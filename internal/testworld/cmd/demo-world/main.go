// Command demo-world runs the outside world of the tests until it is interrupted, for trying the product by
// hand: it prints the environment of a server that lives in it, and where its repository and model are.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"managoat/internal/testworld"
)

const (
	marker   = "fix the cart"
	mount    = "/home/sprite/shop"
	shopName = "shop"
)

// console reports to standard error, and gives up on what is fatal.
type console struct{}

func (console) Helper()                           {}
func (console) Errorf(format string, args ...any) { log.Printf(format, args...) }
func (console) Fatalf(format string, args ...any) { log.Fatalf(format, args...) }

func main() {
	log.SetFlags(0)
	checkout := flag.String("mount", mount, "where a machine has the repository `"+shopName+"`")
	flag.Parse()
	if err := run(*checkout); err != nil {
		log.Fatal(err)
	}
}

func run(checkout string) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "demo-world-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	world := testworld.Open(console{}, dir)
	defer func() {
		if closed := world.Close(); err == nil {
			err = closed
		}
	}()
	shop := world.Git.Add(shopName, testworld.Shop)
	world.Model.Script(marker, testworld.RepairShop(checkout)...)

	for _, setting := range world.Environ() {
		name, value, _ := strings.Cut(setting, "=")
		fmt.Printf("export %s='%s'\n", name, value)
	}
	fmt.Printf(`
# repository       %s
# apt package      %s
# npm package      %s
# model            %s (any key), which answers a prompt with "%s" in it
# stop with Ctrl-C
`, shop.URL, testworld.HelloPackage.Name, testworld.GreetPackage.Name, world.Model.URL, marker)
	<-ctx.Done()
	return nil
}
