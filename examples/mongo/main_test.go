package main

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/idemmail/idemmail/examples/internal/exampletest"
	"github.com/idemmail/idemmail/internal/testserver"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// One worker sends each mail, and the other is answered with the receipt.
func TestMongo(t *testing.T) {
	uri := testserver.Mongo(t).URI
	client, disconnect, err := connect(uri)
	require.NoError(t, err)
	defer disconnect()
	before, err := client.Database(database).ListCollectionNames(t.Context(), bson.D{})
	require.NoError(t, err)

	output, exitCode := exampletest.Run(t, []string{"MONGODB_URI=" + uri})
	require.Zero(t, exitCode)
	for _, order := range orders {
		sent := regexp.MustCompile(`worker ([AB]), order `+order+`: sent, queue id (Q\d)\n`).FindAllStringSubmatch(output, -1)
		replayed := regexp.MustCompile(`worker ([AB]), order `+order+`: sent before, queue id (Q\d)\n`).FindAllStringSubmatch(output, -1)
		require.Len(t, sent, 1)
		require.Len(t, replayed, 1)
		require.NotEqual(t, sent[0][1], replayed[0][1])
		require.Equal(t, sent[0][2], replayed[0][2])
		require.Contains(t, output, "order "+order+": the mail server received it 1 time(s)\n")
	}

	left, err := client.Database(database).ListCollectionNames(t.Context(), bson.D{})
	require.NoError(t, err)
	require.Subset(t, before, left)
}

func TestWithoutMongo(t *testing.T) {
	output, exitCode := exampletest.Run(t, []string{"MONGODB_URI="})
	require.Equal(t, 2, exitCode)
	require.Contains(t, output, "needs a MongoDB: set MONGODB_URI")
}

func TestNoAnswer(t *testing.T) {
	output, exitCode := exampletest.Run(t, []string{"MONGODB_URI=mongodb://127.0.0.1:1"})
	require.Equal(t, 1, exitCode)
	require.Contains(t, output, "refused")
}
