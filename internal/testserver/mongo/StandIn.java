import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.MongoVersion;
import de.bwaldvogel.mongo.backend.memory.MemoryBackend;
import de.bwaldvogel.mongo.bson.Document;
import de.bwaldvogel.mongo.wire.message.MongoMessage;
import java.util.List;

// Serves an in-memory MongoDB on a free loopback port, which it prints, until
// its standard input ends: so it never outlives the test that started it.
public class StandIn {
    public static void main(String[] args) throws Exception {
        MemoryBackend backend = new Backend();
        backend.version(new Version());
        MongoServer server = new MongoServer(backend);
        server.bind("127.0.0.1", 0);
        System.out.println(server.getLocalAddress().getPort());
        while (System.in.read() >= 0) {
        }
        server.shutdownNow();
    }

    // A find is answered with the collection's own documents, which are written
    // out once its lock is free and an update may be changing them in place: a
    // reader would see half of it. MongoDB shows all of an update to a document
    // or nothing, so commands take turns, and each answers with a copy.
    static class Backend extends MemoryBackend {
        @Override
        public synchronized Document handleMessage(MongoMessage message) {
            return super.handleMessage(message).cloneDeeply();
        }
    }

    // The wire version that the newest drivers ask for at least; the stand-in's
    // own is older.
    static class Version implements MongoVersion {
        public List<Integer> getVersionArray() {
            return List.of(4, 4, 0);
        }

        public int getWireVersion() {
            return 9;
        }
    }
}
