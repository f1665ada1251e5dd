package conversation_test

import (
	"os"
	"testing"

	"managoat/internal/conversation/conversationtest"
)

func TestMain(m *testing.M) { os.Exit(conversationtest.Main(m)) }
