package storetest_test

import (
	"testing"

	"github.com/leasefence/leasefence/integration/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m) }
